//! A stream with a limit of time for what its client does not read, and for a client that has ended its side.

use std::io::{self, ErrorKind, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

use super::Connection;

/// The longest time in which a client reads nothing, or less than [`LEAST`].
const LONGEST: Duration = Duration::from_secs(30);
/// Bytes that a client has to read in that time.
const LEAST: usize = 64 << 10;
/// How long a client whose side of the connection has ended waits for its answer. It may as well have gone: nothing
/// distinguishes the two.
const GRACE: Duration = Duration::from_secs(2);

/// A stream of a connection.
pub(super) struct Timed<S> {
    stream: S,
    connection: Arc<Connection>,
    /// Runs while something is to be written that the client does not take.
    unread: Option<Pin<Box<Sleep>>>,
    /// Bytes that were written since it runs.
    written: usize,
    is_stalled: bool,
    /// Runs since the client has ended its side before its answer.
    ended: Option<Pin<Box<Sleep>>>,
    longest: Duration,
    grace: Duration,
}

impl<S> Timed<S> {
    pub(super) fn new(stream: S, connection: Arc<Connection>) -> Self {
        Self {
            stream,
            connection,
            unread: None,
            written: 0,
            is_stalled: false,
            ended: None,
            longest: LONGEST,
            grace: GRACE,
        }
    }

    fn set_stalled(&mut self, is_stalled: bool) {
        if self.is_stalled != is_stalled {
            self.is_stalled = is_stalled;
            self.connection.set_stalled(is_stalled);
        }
    }

    /// Some bytes were taken.
    fn progress(&mut self, count: usize) {
        self.set_stalled(false);
        self.written = self.written.saturating_add(count);
        if self.written >= LEAST {
            self.unread = None;
        }
    }

    /// Nothing is taken now: an error when that has lasted too long.
    fn stall<T>(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        self.set_stalled(true);
        let longest = self.longest;
        let unread = self.unread.get_or_insert_with(|| {
            self.written = 0;
            Box::pin(sleep(longest))
        });
        ready!(unread.as_mut().poll(cx));
        let message = format!("the client has not read its answer for {} s", longest.as_secs());
        Poll::Ready(Err(io::Error::new(ErrorKind::TimedOut, message)))
    }

    /// The result of a write.
    fn wrote(&mut self, cx: &mut Context<'_>, result: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        match result {
            Poll::Pending => self.stall(cx),
            Poll::Ready(Ok(count)) => {
                self.progress(count);
                Poll::Ready(Ok(count))
            }
            failed => failed,
        }
    }

    /// The result of a flush: nothing is left to be taken after it.
    fn flushed(&mut self, cx: &mut Context<'_>, result: Poll<io::Result<()>>) -> Poll<io::Result<()>> {
        match result {
            Poll::Pending => self.stall(cx),
            ready => {
                self.set_stalled(false);
                self.unread = None;
                ready
            }
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Timed<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
        let has_ended = buffer.filled().len() == before && buffer.remaining() > 0;
        // The end would drop the request and what is left of its answer.
        if has_ended && (self.unread.is_some() || self.connection.is_busy()) {
            let grace = self.grace;
            ready!(self.ended.get_or_insert_with(|| Box::pin(sleep(grace))).as_mut().poll(cx));
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Timed<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.wrote(cx, result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write_vectored(cx, parts);
        self.wrote(cx, result)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.stream).poll_flush(cx);
        self.flushed(cx, result)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.flushed(cx, result)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::super::{Connections, Entered};
    use super::*;

    /// A client that takes so many bytes, and whose side has ended.
    struct Client(usize);

    impl AsyncRead for Client {
        fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    impl AsyncWrite for Client {
        fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            let count = bytes.len().min(self.0);
            self.0 -= count;
            if count == 0 { Poll::Pending } else { Poll::Ready(Ok(count)) }
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    const SHORT: Duration = Duration::from_millis(20);

    fn timed(client: Client) -> (Timed<Client>, Entered) {
        let entered = Connections::new(0).enter([192, 0, 2, 1].into()).unwrap();
        let mut timed = Timed::new(client, entered.connection.clone());
        (timed.longest, timed.grace) = (SHORT, SHORT);
        (timed, entered)
    }

    fn run(test: impl Future<Output = ()>) {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test);
    }

    async fn write(timed: &mut Timed<Client>, bytes: &[u8]) -> io::Result<usize> {
        poll_fn(|cx| Pin::new(&mut *timed).poll_write(cx, bytes)).await
    }

    #[test]
    fn a_client_that_does_not_read_is_cut() {
        run(async {
            let (mut timed, entered) = timed(Client(10));
            assert_eq!(write(&mut timed, &[0; 100]).await.unwrap(), 10);
            assert_eq!(write(&mut timed, &[0; 90]).await.unwrap_err().kind(), ErrorKind::TimedOut);
            assert!(entered.connection.activity.lock().stalled.is_some());
        });
    }

    #[test]
    fn a_client_has_to_read_so_much_in_a_time_or_all() {
        run(async {
            let (mut timed, entered) = timed(Client(0));
            let stall = async |timed: &mut Timed<Client>| {
                let pending = poll_fn(|cx| Poll::Ready(Pin::new(&mut *timed).poll_write(cx, &[0]).is_pending()));
                assert!(pending.await && timed.unread.is_some());
            };
            stall(&mut timed).await;
            timed.stream.0 = LEAST;
            write(&mut timed, &[0; LEAST / 2]).await.unwrap();
            assert!(timed.unread.is_some() && entered.connection.activity.lock().stalled.is_none());
            write(&mut timed, &[0; LEAST / 2]).await.unwrap();
            assert!(timed.unread.is_none(), "enough was read");
            stall(&mut timed).await;
            poll_fn(|cx| Pin::new(&mut timed).poll_flush(cx)).await.unwrap();
            assert!(timed.unread.is_none(), "all was read");
        });
    }

    #[test]
    fn a_client_that_has_ended_its_side_waits_for_its_answer_for_a_while() {
        run(async {
            let (mut timed, entered) = timed(Client(0));
            let mut bytes = [0; 8];
            let mut read = async |timed: &mut Timed<Client>| {
                let mut buffer = ReadBuf::new(&mut bytes);
                let start = std::time::Instant::now();
                poll_fn(|cx| Pin::new(&mut *timed).poll_read(cx, &mut buffer)).await.unwrap();
                start.elapsed()
            };
            read(&mut timed).await;
            assert!(timed.ended.is_none(), "it has no request");
            entered.connection.begin();
            assert!(read(&mut timed).await >= SHORT);
        });
    }
}
