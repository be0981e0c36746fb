//! End-to-end tests of the library; one binary, so that it links once.

mod emit;
