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
            fn poll_write(
                self: Pin<&mut Self>,
                task: &mut Context<'_>,
                bytes: &[u8],
            ) -> Poll<io::Result<usize>> {
                self.handle.shared.poll_write(task, bytes)
            }

            fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
                self.handle.shared.poll_flush()
            }

            fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
                self.handle.shared.finish()
            }

            fn poll_write_vectored(
                self: Pin<&mut Self>,
                task: &mut Context<'_>,
                pieces: &[io::IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                self.handle.shared.poll_write_vectored(task, pieces)
            }

            fn is_write_vectored(&self) -> bool {
                true
            }
        }
    )*};
}

reads!(Connection, ReadHalf);
writes!(Connection, WriteHalf);
