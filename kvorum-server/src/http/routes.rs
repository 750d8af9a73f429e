//! The table of HTTP paths: each path with its methods, what each needs of the client's token, and their handlers. A row
//! here and its handler make a path; the API description (`openapi.json`) is compared with it by a test.

use super::batch;
use super::body::ReplyBody;
use super::cluster;
use super::connection::Connection;
use super::console;
use super::cut;
use super::edits;
use super::error::Failure;
use super::handler::{self, ThreadState};
use super::reports;
use super::restore;
use super::target::worker_of;
use super::values;
use super::welcome;
use crate::security::Need;
use bytes::Bytes;
use http::{Method, Request, Response};
use http_body::Body;
use kvorum_core::Right;

/// Makes the paths and the dispatcher from rows: the path's name, its text, whether a spare place serves it, and for each
/// group of methods what it needs of a token, and the handler, which may use the three names in front.
macro_rules! routes {
    (
        ($state:ident, $connection:ident, $request:ident)
        $(
            $(#[doc = $doc:literal])+
            $path:ident = $text:literal, spare $spare:literal {
                $($($method:ident)|+, needs $need:expr => $handler:expr;)+
            }
        )+
    ) => {
        /// The paths that the node has.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Path {
            $($(#[doc = $doc])+ $path,)+
        }

        impl Path {
            /// Every path as it is written; the most frequent first, because they are compared in this order.
            pub const ALL: &[(&'static str, Self)] = &[$(($text, Self::$path),)+];

            /// The methods of the path.
            pub fn methods(self) -> &'static [&'static str] {
                match self {
                    $(Self::$path => &[$($(stringify!($method),)+)+],)+
                }
            }

            /// Whether a connection in a spare place may ask it: peers and operators can when all other places are taken.
            pub fn is_spare(self) -> bool {
                match self {
                    $(Self::$path => $spare,)+
                }
            }
        }

        impl Path {
            /// What a request with `method` needs of its token; none if the path does not have the method.
            pub fn need(self, method: &Method) -> Option<Need> {
                match (self, method) {
                    $($((Self::$path, $(&Method::$method)|+) => Some($need),)+)+
                    _ => None,
                }
            }
        }

        /// Answers a request to `path`.
        ///
        /// # Errors
        /// The failure that the client is told.
        pub async fn answer<B>(
            $state: &ThreadState,
            $connection: &Connection,
            $request: Request<B>,
            path: Path,
        ) -> Result<Response<ReplyBody>, Failure>
        where
            B: Body<Data = Bytes> + Unpin,
        {
            let method = $request.method().clone();
            match (path, &method) {
                $($((Path::$path, $(&Method::$method)|+) => $handler,)+)+
                (path, _) => Err(Failure::method(path.methods())),
            }
        }
    };
}

routes! {
    (state, connection, request)

    /// One key.
    Entity = "/v0/entity", spare false {
        GET | HEAD, needs Need::Right(Right::Read) => handler::get(state, &request).await;
        PUT, needs Need::Right(Right::Write) => values::put(state, connection, request).await;
        POST, needs Need::Right(Right::Write) => edits::post(state, connection, request).await;
        DELETE, needs Need::Right(Right::Delete) => handler::delete(state, &request).await;
    }
    /// A range of keys.
    Entities = "/v0/entities", spare false {
        GET | HEAD, needs Need::Right(Right::Scan) => handler::range(state, &request).await;
    }
    /// Operations, one a line.
    Batch = "/v0/batch", spare false {
        POST, needs Need::Token => batch::batch(state, connection, request).await;
    }
    /// The node's state.
    Status = "/v0/status", spare true {
        GET | HEAD, needs Need::Nothing => reports::show_status(&state.service, &request);
    }
    /// Counters in Prometheus text.
    Metrics = "/metrics", spare true {
        GET | HEAD, needs Need::Right(Right::Metrics) => reports::show_metrics(&state.service, &request);
    }
    /// The load of the last quarter of an hour.
    History = "/v0/history", spare true {
        GET | HEAD, needs Need::Right(Right::Metrics) => reports::show_history(&state.service, &request);
    }
    /// Where other nodes connect.
    Peer = "/v0/peer", spare true {
        GET, needs Need::Nothing => welcome::welcome(&state.service, connection, &request);
    }
    /// The placement of keys.
    Topology = "/v0/topology", spare false {
        GET | HEAD, needs Need::Token => handler::show_topology(&state.service, &request);
    }
    /// Every node's copy of a key.
    Explain = "/v0/explain", spare false {
        GET | HEAD, needs Need::Right(Right::Read) => handler::show_explanation(state, &request).await;
    }
    /// The instant up to which all replicas agree.
    Converged = "/v0/converged", spare false {
        GET | HEAD, needs Need::Token => handler::show_converged(&state.service, &request);
    }
    /// A comparison of this node with all others, now.
    Repair = "/admin/repair", spare false {
        POST, needs Need::Right(Right::Admin) => handler::repair(state, &request).await;
    }
    /// The state of this node at one timestamp, for a backup.
    Cut = "/admin/cut", spare false {
        GET, needs Need::Right(Right::Admin) => cut::show(state, &request);
        POST, needs Need::Right(Right::Admin) => cut::order(state, &request).await;
    }
    /// The records of that state.
    CutRecords = "/admin/cut/records", spare false {
        GET, needs Need::Right(Right::Admin) => cut::records(state, &request).await;
    }
    /// A record of a backup.
    Restore = "/admin/entity", spare false {
        PUT, needs Need::Right(Right::Admin) => restore::put(state, connection, request).await;
    }
    /// The API description for programs.
    OpenApi = "/openapi.json", spare false {
        GET | HEAD, needs Need::Token => handler::show_openapi(&request);
    }
    /// A profile of the process.
    Profile = "/debug/profile", spare false {
        GET, needs Need::Right(Right::Admin) => handler::show_profile(&state.service, &request).await;
    }
    /// The node's background workers.
    Workers = "/admin/workers", spare false {
        GET | HEAD, needs Need::Right(Right::Admin) => handler::show_workers(&state.service, &request);
    }
    /// The node's settings.
    Settings = "/admin/settings", spare false {
        GET | HEAD, needs Need::Right(Right::Admin) => reports::show_settings(&state.service, &request);
    }
    /// The configuration of the cluster.
    Cluster = "/admin/cluster", spare false {
        GET | HEAD, needs Need::Right(Right::Admin) => cluster::show(&state.service, &request);
    }
    /// Plans a change of it.
    ClusterPlan = "/admin/cluster/plan", spare false {
        POST, needs Need::Right(Right::Admin) => cluster::plan(state, &request).await;
    }
    /// Applies the plan.
    ClusterApply = "/admin/cluster/apply", spare false {
        POST, needs Need::Right(Right::Admin) => cluster::apply(state, &request).await;
    }
    /// Drops the plan, or turns the change under way round.
    ClusterCancel = "/admin/cluster/cancel", spare false {
        POST, needs Need::Right(Right::Admin) => cluster::cancel(state, &request).await;
    }
    /// Where a browser is sent to the console.
    Root = "/", spare false {
        GET | HEAD, needs Need::Nothing => console::welcome(&request);
    }
    /// The page for people.
    Console = "/console", spare false {
        GET | HEAD, needs Need::Nothing => console::show(&state.service, &request, &console::PAGE);
    }
    /// Its program.
    ConsoleScript = "/console/console.js", spare false {
        GET | HEAD, needs Need::Nothing => console::show(&state.service, &request, &console::SCRIPT);
    }
    /// Its style.
    ConsoleStyle = "/console/console.css", spare false {
        GET | HEAD, needs Need::Nothing => console::show(&state.service, &request, &console::STYLE);
    }
    /// The program of its page of profiles.
    ConsoleProfile = "/console/profile.js", spare false {
        GET | HEAD, needs Need::Nothing => console::show(&state.service, &request, &console::PROFILE);
    }
    /// Pauses a worker.
    WorkerPause = "/admin/workers/{name}/pause", spare false {
        POST, needs Need::Right(Right::Admin) => handler::pause_worker(&state.service, &request);
    }
    /// Resumes a worker.
    WorkerResume = "/admin/workers/{name}/resume", spare false {
        POST, needs Need::Right(Right::Admin) => handler::resume_worker(&state.service, &request);
    }
}

impl Path {
    /// The path that `path` names, compared byte for byte.
    pub fn parse(path: &str) -> Option<Self> {
        let known = Self::ALL.iter().find(|(text, _)| *text == path).map(|(_, path)| *path);
        known.or_else(|| match worker_of(path)? {
            (_, "pause") => Some(Self::WorkerPause),
            (_, "resume") => Some(Self::WorkerResume),
            _ => None,
        })
    }
}
