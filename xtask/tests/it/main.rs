//! Tests of the developer commands.

mod commands;
