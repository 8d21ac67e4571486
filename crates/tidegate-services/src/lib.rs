//! Ready-made services: ordinary users of the tidegate library.
//!
//! | service | what it does |
//! |---|---|
//! | [`echo`] | sends back what it receives |
#![forbid(unsafe_code)]

pub mod echo;

pub use echo::Echo;
