//! Messages of modules to a worker thread, from tasks of the process.

use crate::thread::Thread;
use forebay_core::outside::Outside;
use std::any::Any;
use std::rc::Rc;

/// A message that a worker thread takes.
pub trait Message: Send + 'static {
    /// Takes the message, on the thread.
    fn deliver(self: Box<Self>, thread: &Rc<Thread>);
}

/// A message of any type.
struct Envelope(Box<dyn Message>);

/// Sends a message to the first worker thread. `front`: number of the HTTP front end.
pub fn send(outside: &Outside, front: u8, message: impl Message) {
    outside.message(front, Box::new(Envelope(Box::new(message))));
}

/// Delivers a message that has come to a thread.
pub fn deliver(message: Box<dyn Any + Send>, thread: &Rc<Thread>) {
    if let Ok(envelope) = message.downcast::<Envelope>() {
        envelope.0.deliver(thread);
    }
}
