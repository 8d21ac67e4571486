//! A gRPC service with tonic on any I/O model: a method of each kind, unary and streaming in either direction or both.
//!
//! `cargo run --release --features grpc --bin grpc -- --model uring`

use futures_util::{StreamExt, TryStreamExt, future::ready, stream, stream::BoxStream};
use hyper::server::conn::http2::Builder;
use hyper_util::service::TowerToHyperService;
use tidegate_apps::greeter::greeter_server::{Greeter, GreeterServer};
use tidegate_apps::greeter::{CountRequest, HelloReply, HelloRequest, Number};
use tonic::{Request, Response, Status, Streaming, service::Routes};

type Numbers = BoxStream<'static, Result<Number, Status>>;

struct Hello;

#[tonic::async_trait]
impl Greeter for Hello {
    type CountToStream = Numbers;
    type RunningSumStream = Numbers;

    async fn say_hello(&self, request: Request<HelloRequest>) -> Result<Response<HelloReply>, Status> {
        let name = request.into_inner().name;
        if name.is_empty() {
            return Err(Status::invalid_argument("the name is empty"));
        }
        Ok(Response::new(HelloReply { message: format!("Hello, {name}!") }))
    }

    async fn count_to(&self, request: Request<CountRequest>) -> Result<Response<Numbers>, Status> {
        let numbers = (1..=request.into_inner().to).map(|value| Ok(Number { value }));
        Ok(Response::new(stream::iter(numbers).boxed()))
    }

    async fn sum(&self, request: Request<Streaming<Number>>) -> Result<Response<Number>, Status> {
        let add = |sum: u32, number: Number| ready(Ok(sum.wrapping_add(number.value)));
        Ok(Response::new(Number { value: request.into_inner().try_fold(0, add).await? }))
    }

    async fn running_sum(&self, request: Request<Streaming<Number>>) -> Result<Response<Numbers>, Status> {
        let mut value = 0_u32;
        let sums = request.into_inner().map_ok(move |number| {
            value = value.wrapping_add(number.value);
            Number { value }
        });
        Ok(Response::new(sums.boxed()))
    }
}

fn main() -> anyhow::Result<()> {
    let routes = Routes::new(GreeterServer::new(Hello)).prepare();
    tidegate_apps::serve(tidegate_async::service(move |conn| {
        let service = TowerToHyperService::new(routes.clone());
        async move {
            let (mut http, handle) = (Builder::new(conn.executor()), conn.handle());
            let served = http.timer(conn.timer()).serve_connection(conn, service);
            handle.with_graceful_shutdown(served, |served| served.graceful_shutdown()).await
        }
    }))
}
