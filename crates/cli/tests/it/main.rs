//! The program as people run it: real processes on SQLite, in folders of their own.

mod beginning;
mod checking;
mod demo;
mod desk;
mod ending;
mod refusing;
mod secrets;
mod storage;
