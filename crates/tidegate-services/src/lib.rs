//! Ready-made services: ordinary users of the tidegate library.
//!
//! | service | what it does |
//! |---|---|
//! | [`echo`] | sends back what it receives |
//! | [`http`] | answers every HTTP request with the same page |
#![forbid(unsafe_code)]

pub mod echo;
pub mod http;

pub use echo::Echo;
pub use http::{Http, HttpLimits, HttpLimitsError, Page, PageError};
