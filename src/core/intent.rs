//! What the caller wants done.
