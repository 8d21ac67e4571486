//! Asks a gRPC server with tonic's own client, on tokio, and checks every answer. `grpc-client ADDR:PORT`.

use anyhow::{Context, ensure};
use futures_util::stream;
use tidegate_apps::greeter::greeter_client::GreeterClient;
use tidegate_apps::greeter::{CountRequest, HelloRequest, Number};
use tonic::Code;
use tonic::transport::Channel;

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let address = std::env::args().nth(1).context("say the address: grpc-client ADDR:PORT")?;
    let channel = Channel::from_shared(format!("http://{address}"))?.connect().await?;
    let mut client = GreeterClient::new(channel);
    let reply = client.say_hello(HelloRequest { name: "you".into() }).await?.into_inner();
    ensure!(reply.message == "Hello, you!", "unary: {reply:?}");
    let refusal =
        client.say_hello(HelloRequest::default()).await.err().context("an empty name was greeted")?;
    ensure!(refusal.code() == Code::InvalidArgument, "the status of a refusal: {refusal:?}");
    let mut numbers = client.count_to(CountRequest { to: COUNT }).await?.into_inner();
    for expected in 1..=COUNT {
        let number =
            numbers.message().await?.with_context(|| format!("the stream ends before {expected}"))?;
        ensure!(number.value == expected, "streamed: {number:?} in place of {expected}");
    }
    ensure!(numbers.message().await?.is_none(), "the stream goes on behind its last number");
    let all = stream::iter((1..=COUNT).map(|value| Number { value }));
    let sum = client.sum(all).await?.into_inner();
    ensure!(sum.value == COUNT * (COUNT + 1) / 2, "the sum of a stream: {sum:?}");
    // Each number is sent when the sum of those before it is there.
    let (send, mut queue) = tokio::sync::mpsc::channel(1);
    let mut sums = client.running_sum(stream::poll_fn(move |cx| queue.poll_recv(cx))).await?.into_inner();
    for value in 1..=100 {
        send.send(Number { value }).await?;
        let sum = sums.message().await?.with_context(|| format!("both ways: the end at {value}"))?;
        ensure!(sum.value == value * (value + 1) / 2, "both ways: {sum:?} at {value}");
    }
    drop(send);
    ensure!(sums.message().await?.is_none(), "both ways: no end behind the last number");
    // Many at once over one connection.
    let both = |n: u32| {
        let mut client = client.clone();
        async move { client.say_hello(HelloRequest { name: n.to_string() }).await }
    };
    for (n, reply) in futures_util::future::join_all((0..100).map(both)).await.into_iter().enumerate() {
        ensure!(reply?.into_inner().message == format!("Hello, {n}!"), "answer {n} of many");
    }
    println!("ok");
    Ok(())
}

/// More than one window of HTTP/2 holds.
const COUNT: u32 = 50_000;
