//! `AsyncRead` and `AsyncWrite` of futures-io.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_io::{AsyncRead, AsyncWrite};

use crate::{Connection, ReadHalf, WriteHalf};

macro_rules! reads {
    ($($name:ty),*) => {$(
        impl AsyncRead for $name {
            fn poll_read(
                self: Pin<&mut Self>,
                task: &mut Context<'_>,
                buffer: &mut [u8],
            ) -> Poll<io::Result<usize>> {
                let most = buffer.len();
                self.handle.shared.poll_read(task, most, |bytes| {
                    if let Some(front) = buffer.get_mut(..bytes.len()) {
                        front.copy_from_slice(bytes);
                    }
                })
            }
        }
    )*};
}

macro_rules! writes {
    ($($name:ty),*) => {$(
        impl AsyncWrite for $name {
            write_methods!(poll_close);
        }
    )*};
}

reads!(Connection, ReadHalf);
writes!(Connection, WriteHalf);
