//! Stories about gangs, as the index tells them.

mod device_plugin;
mod ends;
mod follow;
mod gangs;
mod judged;
mod nodes;
mod order;
mod requests;
mod scale;
mod shorthand;
mod waits;
