//! PostgreSQL, on real servers of two versions.
