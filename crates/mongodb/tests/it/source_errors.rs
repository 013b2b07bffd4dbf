//! What goes wrong while a stream is opened or read.
