//! ONNX models: opsets 7 to 26 of the standard domain, IR versions 3 and later.
//!
//! The path of a file: [`proto`] decodes it in place, `reader` checks it as a whole and types its inputs (`interface`),
//! `import` walks the nodes in dependency order (`order`), inlining functions and constant branches, and hands each to
//! the table in [`ops`]. Small integer tensors are followed symbolically on the way (`shapes`), so that shape
//! arithmetic turns into attributes. Nothing here panics on any file, and every refusal of a model comes in one
//! error.

mod attributes;
mod evaluate;
mod import;
mod interface;
mod lower;
pub mod ops;
mod order;
pub mod proto;
mod reader;
mod shapes;
mod tensors;

pub(super) use reader::import;
