//! A gRPC service with tonic on any I/O model: a unary method and one that streams its answer.
//!
//! `cargo run --release --features grpc --bin grpc -- --model uring`

use std::pin::Pin;

use futures_util::{Stream, stream};
use hyper::server::conn::http2::Builder;
use hyper_util::service::TowerToHyperService;
use tidegate_apps::greeter::greeter_server::{Greeter, GreeterServer};
use tidegate_apps::greeter::{CountRequest, HelloReply, HelloRequest, Number};
use tonic::service::Routes;
use tonic::{Request, Response, Status};

struct Hello;

#[tonic::async_trait]
impl Greeter for Hello {
    type CountToStream = Pin<Box<dyn Stream<Item = Result<Number, Status>> + Send>>;

    async fn say_hello(&self, request: Request<HelloRequest>) -> Result<Response<HelloReply>, Status> {
        let name = request.into_inner().name;
        if name.is_empty() {
            return Err(Status::invalid_argument("the name is empty"));
        }
        Ok(Response::new(HelloReply { message: format!("Hello, {name}!") }))
    }

    async fn count_to(
        &self,
        request: Request<CountRequest>,
    ) -> Result<Response<Self::CountToStream>, Status> {
        let numbers = (1..=request.into_inner().to).map(|value| Ok(Number { value }));
        Ok(Response::new(Box::pin(stream::iter(numbers))))
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
