//! The program as people run it: real processes on SQLite, in folders of their own.

mod letters;
mod looking;
mod moving;
mod shop;
mod tailing;
mod watch;
