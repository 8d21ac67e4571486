//! Makes the gRPC service's code, as `tonic-prost-build` does of a `.proto` file, but without a compiler for those.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    #[cfg(feature = "grpc")]
    grpc();
}

/// ```proto
/// package demo;
/// service Greeter {
///   rpc SayHello(HelloRequest) returns (HelloReply);
///   rpc CountTo(CountRequest) returns (stream Number);
///   rpc Sum(stream Number) returns (Number);
///   rpc RunningSum(stream Number) returns (stream Number);
/// }
/// ```
#[cfg(feature = "grpc")]
fn grpc() {
    use tonic_build::manual::{Builder, Method, Service};
    let method = |name: &str, route: &str, takes: &str, gives: &str| {
        let message = |name| format!("crate::greeter::{name}");
        Method::builder().name(name).route_name(route).input_type(message(takes)).output_type(message(gives))
    };
    let codec = "tonic_prost::ProstCodec";
    let hello = method("say_hello", "SayHello", "HelloRequest", "HelloReply").codec_path(codec).build();
    let count = method("count_to", "CountTo", "CountRequest", "Number").codec_path(codec);
    let count = count.server_streaming().build();
    let sum = method("sum", "Sum", "Number", "Number").codec_path(codec).client_streaming().build();
    let running = method("running_sum", "RunningSum", "Number", "Number").codec_path(codec);
    let running = running.client_streaming().server_streaming().build();
    let greeter = Service::builder().package("demo").name("Greeter").method(hello).method(count);
    let greeter = greeter.method(sum).method(running).build();
    Builder::new().compile(&[greeter]);
}
