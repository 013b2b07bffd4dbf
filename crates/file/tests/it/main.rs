//! Tests of files and standard output as targets, on real files in temporary folders.

mod conformance;
mod fences;
mod specifics;
mod stdout;
mod support;
