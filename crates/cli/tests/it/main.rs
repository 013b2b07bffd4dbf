//! The program as people run it: real processes on SQLite, MongoDB and PostgreSQL, in folders of their own.

mod apart;
mod beginning;
mod checking;
mod demo;
mod ending;
mod guide;
mod health;
mod letters;
mod looking;
mod losing;
mod manners;
mod mongodb;
mod moving;
mod offline;
mod pages;
mod postgres;
mod refusing;
mod secrets;
mod shop;
mod silence;
mod storage;
mod tailing;
mod targets;
mod watch;
mod workspace;
