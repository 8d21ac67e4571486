//! WebSocket with tungstenite on any I/O model: each message comes back, and a drain is announced to the peer.
//!
//! `cargo run --release --bin websocket -- --model uring`, then `new WebSocket('ws://127.0.0.1:8080')` in a browser.

use futures_util::{SinkExt, StreamExt};
use tokio_tungstenite::accept_async_with_config;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, WebSocketConfig};

fn main() -> anyhow::Result<()> {
    let config = WebSocketConfig::default().max_message_size(Some(1 << 20));
    tidegate_apps::serve(tidegate_async::service(move |conn| async move {
        let draining = conn.draining();
        tokio::pin!(draining);
        let Ok(mut socket) = accept_async_with_config(conn, Some(config)).await else { return };
        let mut leaving = false;
        loop {
            tokio::select! {
                message = socket.next() => match message {
                    Some(Ok(message @ (Message::Text(_) | Message::Binary(_)))) => {
                        if socket.send(message).await.is_err() {
                            return;
                        }
                    }
                    Some(Ok(_)) => {} // pings and closes are answered by the library
                    Some(Err(_)) | None => return,
                },
                () = draining.as_mut(), if !leaving => {
                    leaving = true;
                    let away = CloseFrame { code: CloseCode::Away, reason: "the server stops".into() };
                    if socket.close(Some(away)).await.is_err() {
                        return;
                    }
                }
            }
        }
    }))
}
