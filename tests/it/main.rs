//! End-to-end tests of the forge-cc library and binary, one binary for all of them.

mod onnx_bad_files;
mod onnx_build;
mod onnx_models;
mod onnx_ops;
