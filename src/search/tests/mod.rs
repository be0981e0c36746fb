//! The search on scripted landscapes: no kernel is built, no clock is read.

mod contest;
mod journal;
mod landscape;
mod run;
mod tree;
