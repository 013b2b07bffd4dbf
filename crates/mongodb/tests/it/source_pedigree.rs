//! Positions that do not belong to the log that answers.
