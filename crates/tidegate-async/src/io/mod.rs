//! Implementations of the read and write traits of tokio, futures-io and hyper.

/// The methods that the write traits have in common; `$shut_down` is what the trait calls the end of sending.
macro_rules! write_methods {
    ($shut_down:ident) => {
        fn poll_write(
            self: std::pin::Pin<&mut Self>,
            task: &mut std::task::Context<'_>,
            bytes: &[u8],
        ) -> std::task::Poll<std::io::Result<usize>> {
            self.handle.shared.poll_write(task, bytes)
        }

        fn poll_write_vectored(
            self: std::pin::Pin<&mut Self>,
            task: &mut std::task::Context<'_>,
            pieces: &[std::io::IoSlice<'_>],
        ) -> std::task::Poll<std::io::Result<usize>> {
            self.handle.shared.poll_write_vectored(task, pieces)
        }

        fn poll_flush(
            self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<std::io::Result<()>> {
            self.handle.shared.poll_flush()
        }

        fn $shut_down(
            self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<std::io::Result<()>> {
            self.handle.shared.finish()
        }
    };
}

#[cfg(feature = "futures-io")]
mod futures;
#[cfg(feature = "hyper")]
pub(crate) mod hyper;
#[cfg(feature = "tokio")]
mod tokio;
