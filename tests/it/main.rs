//! End-to-end tests of the forge-cc library and binary; one binary, so that it links once.

mod accuracy;
mod cli;
mod command;
mod emit;
mod layout;
mod onnx_bad_files;
mod onnx_build;
mod onnx_graphs;
mod onnx_models;
mod onnx_ops;
mod onnx_written;
mod oracle;
mod python;
mod resume;
