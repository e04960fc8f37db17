//! Delivery over HTTP: all of ureq.
