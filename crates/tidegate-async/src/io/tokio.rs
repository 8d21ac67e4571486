//! `AsyncRead` and `AsyncWrite` of tokio.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::{Connection, ReadHalf, WriteHalf};

macro_rules! reads {
    ($($name:ty),*) => {$(
        impl AsyncRead for $name {
            fn poll_read(
                self: Pin<&mut Self>,
                task: &mut Context<'_>,
                buffer: &mut ReadBuf<'_>,
            ) -> Poll<io::Result<()>> {
                let most = buffer.remaining();
                self.handle.shared.poll_read(task, most, |bytes| buffer.put_slice(bytes)).map_ok(drop)
            }
        }
    )*};
}

macro_rules! writes {
    ($($name:ty),*) => {$(
        impl AsyncWrite for $name {
            write_methods!(poll_shutdown);

            fn is_write_vectored(&self) -> bool {
                true
            }
        }
    )*};
}

reads!(Connection, ReadHalf);
writes!(Connection, WriteHalf);
