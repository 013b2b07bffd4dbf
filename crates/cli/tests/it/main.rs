//! The program as people run it: real processes on SQLite and on MongoDB, in folders of their own.

mod beginning;
mod checking;
mod demo;
mod desk;
mod ending;
mod guide;
mod letters;
mod looking;
mod mongodb;
mod moving;
mod refusing;
mod secrets;
mod shop;
mod storage;
mod tailing;
mod watch;
