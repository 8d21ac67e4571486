//! Async code has the stack it needs on every model, without a limit being set.

mod kit;

use kit::{connect, exchange, on_every_model, policy, start};
use tidegate_async::{Connection, service};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Calls itself until it is so many bytes below `top`; returns how often.
#[inline(never)]
fn descend(top: usize, bytes: usize) -> usize {
    let frame = [0_u8; 4096];
    let at = std::hint::black_box(&frame).as_ptr().addr();
    let below = if top.abs_diff(at) < bytes { descend(top, bytes) } else { 0 };
    below + 1 + usize::from(std::hint::black_box(&frame)[0])
}

/// Uses so much stack.
fn use_stack(bytes: usize) {
    let top = [0_u8];
    assert!(descend(std::hint::black_box(&top).as_ptr().addr(), bytes) > 1);
}

/// Answers each byte when it has used so much stack.
async fn echo_from_below(mut conn: Connection, stack_bytes: usize) {
    let mut byte = [0];
    while let Ok(1) = conn.read(&mut byte).await {
        use_stack(stack_bytes);
        if conn.write_all(&byte).await.is_err() {
            return;
        }
    }
}

#[test]
fn code_may_use_half_a_mebibyte_of_stack() {
    on_every_model(|model| {
        let running =
            start(model, policy(model), service(async |conn| echo_from_below(conn, 512 << 10).await));
        assert_eq!(exchange(&mut connect(&running), b"x"), b"x", "{model}");
        running.stop();
        running.join();
    });
}

#[test]
fn code_may_ask_for_more() {
    on_every_model(|model| {
        let asks = service(async |conn| echo_from_below(conn, 4 << 20).await).stack_bytes(16 << 20);
        let running = start(model, policy(model), asks);
        assert_eq!(exchange(&mut connect(&running), b"x"), b"x", "{model}");
        running.stop();
        running.join();
    });
}
