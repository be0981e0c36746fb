//! Integration tests of forge-kernels: generated code compiled by the system compiler and run by the runtime.

mod codegen;
mod gate;
