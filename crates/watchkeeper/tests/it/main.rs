//! What a user of the library sees, through the facade only.

mod files;
mod pull;
mod relief;
