//! Every row of the table, provoked on a real server.
