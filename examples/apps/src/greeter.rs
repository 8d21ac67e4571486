//! The messages of the gRPC service; its server and its client are made by `build.rs`.

/// Whom to greet.
#[derive(Clone, PartialEq, prost::Message)]
pub struct HelloRequest {
    #[prost(string, tag = "1")]
    pub name: String,
}

/// The greeting.
#[derive(Clone, PartialEq, prost::Message)]
pub struct HelloReply {
    #[prost(string, tag = "1")]
    pub message: String,
}

/// How far to count.
#[derive(Clone, PartialEq, prost::Message)]
pub struct CountRequest {
    #[prost(uint32, tag = "1")]
    pub to: u32,
}

/// One number of those counted or added up, or a sum.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Number {
    #[prost(uint32, tag = "1")]
    pub value: u32,
}

include!(concat!(env!("OUT_DIR"), "/demo.Greeter.rs"));
