//! `paceline serve`: sockets, model, engine, workers, server, and their end.

use std::future::Future;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, anyhow};
use paceline_engine::{Engine, Gate, Handle, Options as EngineOptions};
use paceline_server::{Listeners, Options as ServerOptions, Server, Tls, Traces};
use paceline_text::Tokenizer;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::Failure;
use crate::failure::EXIT_USAGE;
use crate::launcher::{Launcher, WorkerCommand};
use crate::model_config::ModelConfig;
use crate::prepare::{Prepared, prepare};
use crate::say::say;
use crate::settings::Settings;
use crate::signals::Signals;

/// How often readiness is looked at.
const WATCH_INTERVAL: Duration = Duration::from_millis(20);

/// What the server gets to end open streams once the engine has ended.
const SERVER_GRACE: Duration = Duration::from_millis(1_000);

struct Sockets {
    listeners: Listeners,
    control: TcpListener,
    http: SocketAddr,
    grpc: Option<SocketAddr>,
    control_address: SocketAddr,
}

/// Serves until a signal comes or something fails.
///
/// # Errors
/// Why it could not start or go on.
pub(crate) async fn serve(settings: Settings) -> Result<(), Failure> {
    let signals = Signals::listen().context("cannot listen for signals")?;
    let (tls, traces) = (settings.flags.tls()?, settings.flags.traces()?);
    let sockets = bind(&settings).await?;
    let grpc = sockets.grpc.map_or_else(String::new, |address| format!(" grpc={address}"));
    say(&format!("listening on http={}{grpc} control={}", sockets.http, sockets.control_address));

    let prepared = prepare(&settings, signals.first()).await;
    if let Some(failure) = signals.failure() {
        return Err(failure);
    }
    let prepared = prepared?;
    let tokenizer = Tokenizer::load(&prepared.path)
        .map_err(|error| Failure::Usage(format!("{}: {error}", prepared.path.display())))?;
    run(settings, sockets, prepared, tokenizer, (tls, traces), signals).await
}

async fn bind(settings: &Settings) -> Result<Sockets, Failure> {
    let http = resolve(settings.host(), settings.port()).await?;
    let grpc = resolve(settings.host(), settings.grpc_port()).await?;
    let control = resolve(settings.control_host(), settings.flags.control_port.unwrap_or(0)).await?;
    let listeners = Listeners::bind(http, Some(grpc)).await.map_err(|error| Failure::Usage(error.to_string()))?;
    let control = TcpListener::bind(control)
        .await
        .map_err(|error| Failure::Usage(format!("cannot listen for workers on {control}: {error}")))?;
    let control_address = control.local_addr().context("the control port has no address")?;
    let http = listeners.http_addr().context("the HTTP port has no address")?;
    let grpc = listeners.grpc_addr().context("the gRPC port has no address")?;
    Ok(Sockets { listeners, control, http, grpc, control_address })
}

async fn resolve(host: &str, port: u16) -> Result<SocketAddr, Failure> {
    let mut found = tokio::net::lookup_host((host, port))
        .await
        .map_err(|error| Failure::Usage(format!("{host} is no address to listen on: {error}")))?;
    found.next().ok_or_else(|| Failure::Usage(format!("{host} is no address to listen on")))
}

async fn run(
    settings: Settings,
    sockets: Sockets,
    prepared: Prepared,
    tokenizer: Tokenizer,
    (tls, traces): (Option<Tls>, Option<Traces>),
    signals: Signals,
) -> Result<(), Failure> {
    let model = ModelConfig::read(&prepared.path)?;
    settings.check_model(&model)?;
    let context_len = tokenizer.settings().context_tokens.and_then(|tokens| u32::try_from(tokens).ok());
    let fleet = settings.fleet(settings.max_model_len(context_len)?, &model);
    for cut in &fleet.shapes.without_graph {
        tracing::warn!("{cut}");
    }
    let mut engine = Engine::build(EngineOptions {
        fleet,
        model: settings.model(&prepared.path),
        control_listener: sockets.control,
        unread: settings.flags.unread_tokens(),
    })
    .map_err(|error| Failure::Usage(error.to_string()))?;
    let handle = engine.handle();
    let options = server_options(&settings, &prepared, tokenizer, (tls, traces.clone()));
    let model_name = options.model_name.clone();
    let server = Server::build(options, handle.clone(), sockets.listeners);

    let (engine_stop, server_stop) = (CancellationToken::new(), CancellationToken::new());
    let launcher = match engine.supervisor() {
        Some(supervisor) if settings.spawns() => {
            let command = worker_command(&settings, &prepared, sockets.control_address);
            Some(Launcher::start(command, supervisor).context("cannot start the launcher")?)
        }
        _ => {
            tell_how_to_join(&settings, &prepared, sockets.control_address);
            None
        }
    };
    let engine = engine.run(engine_stop.clone());
    let server = tokio::spawn(server.run(server_stop.clone()));
    let url = format!("{}://{}", if settings.flags.ssl_certfile.is_some() { "https" } else { "http" }, sockets.http);
    let watcher = watch(handle.clone(), url, model_name, settings.parallelism());
    let watcher = tokio::spawn(signals.first().clone().run_until_cancelled_owned(watcher));
    let ended = until_the_end(engine, server, &handle, &settings, &signals, &engine_stop, &server_stop).await;
    watcher.abort();
    if let Some(traces) = traces {
        traces.flush().await;
    }
    let worker_code = match launcher {
        Some(launcher) => tokio::task::spawn_blocking(|| launcher.join()).await.unwrap_or(0),
        None => 0,
    };
    match ended {
        Ok(()) => Ok(()),
        Err(error) if worker_code == EXIT_USAGE => Err(Failure::Usage(format!("{error:#}"))),
        Err(error) => match signals.failure() {
            Some(failure) => Err(failure),
            None => Err(Failure::Other(error)),
        },
    }
}

/// What the server is given.
fn server_options(
    settings: &Settings,
    prepared: &Prepared,
    tokenizer: Tokenizer,
    (tls, traces): (Option<Tls>, Option<Traces>),
) -> ServerOptions {
    let flags = &settings.flags;
    let model_root = flags.model.clone().or(prepared.name.clone()).unwrap_or_default();
    ServerOptions {
        model_name: flags.served_model_name.clone().or(prepared.name.clone()).unwrap_or(model_root.clone()),
        model_root,
        sampling_defaults: tokenizer.settings().sampling.clone(),
        tokenizer,
        api_key: flags.api_key.clone(),
        admin: flags.enable_admin == Some(true),
        chat: flags.chat_options(),
        limits: flags.request_limits(),
        connections: flags.connection_limits(),
        tls,
        traces,
        cors: flags.cors_options(),
    }
}

/// Runs engine and server until one of them ends or a signal comes; then ends both, the engine first.
async fn until_the_end(
    engine: impl Future<Output = Result<(), paceline_engine::Error>>,
    mut server: tokio::task::JoinHandle<Result<(), paceline_server::Error>>,
    handle: &Handle,
    settings: &Settings,
    signals: &Signals,
    engine_stop: &CancellationToken,
    server_stop: &CancellationToken,
) -> anyhow::Result<()> {
    tokio::pin!(engine);
    let mut result = tokio::select! {
        ended = &mut engine => {
            server_stop.cancel();
            let _ = tokio::time::timeout(SERVER_GRACE, &mut server).await;
            return ended.map_err(Into::into).and_then(|()| Err(anyhow!("the engine ended by itself")));
        }
        ended = &mut server => match ended {
            Ok(Ok(())) => Err(anyhow!("the server ended by itself")),
            Ok(Err(error)) => Err(error.into()),
            Err(error) => Err(error.into()),
        },
        name = signals.wait() => {
            tracing::info!("{name}: stopping");
            let was_ready = handle.status().ready;
            tokio::select! {
                () = finish_running(handle, settings) => {}
                _ = signals.wait_again() => {}
                ended = &mut engine => return ended.map_err(Into::into),
            }
            if was_ready { Ok(()) } else { Err(anyhow!("stopped before it was in service")) }
        }
    };
    engine_stop.cancel();
    if let Err(error) = engine.await {
        result = result.and(Err(error.into()));
    }
    server_stop.cancel();
    if !server.is_finished() {
        let _ = tokio::time::timeout(SERVER_GRACE, &mut server).await;
    }
    result
}

/// Gives accepted requests the time that `--shutdown-timeout` grants, while new ones are refused.
async fn finish_running(handle: &Handle, settings: &Settings) {
    let limit = Duration::from_secs(settings.flags.shutdown_timeout.unwrap_or(0));
    let drained = async {
        // What a pause stopped is to end too. An engine that has stopped has nothing left.
        let _ = handle.set_gate(None, Gate::Open, false).await;
        let _ = handle.set_gate(None, Gate::Draining, true).await;
    };
    // Streams that are left end with an error event when the engine stops.
    let _ = tokio::time::timeout(limit, drained).await;
}

fn worker_command(settings: &Settings, prepared: &Prepared, control: SocketAddr) -> WorkerCommand {
    let mut words = match &settings.flags.worker_command {
        Some(command) => command.split_whitespace().map(str::to_owned).collect(),
        None => vec![settings.python.clone(), "-m".to_owned(), "paceline.worker".to_owned()],
    }
    .into_iter();
    WorkerCommand {
        program: words.next().unwrap_or_default(),
        arguments: words.collect(),
        daemon_address: reachable(control).to_string(),
        model_folder: prepared.path.display().to_string(),
        join_token: settings.join_token.clone(),
        dp_size: settings.dp_size,
        tp_size: settings.tp_size,
    }
}

/// An address that a worker on this machine can dial.
fn reachable(address: SocketAddr) -> SocketAddr {
    let mut dialled = address;
    if address.ip().is_unspecified() {
        dialled.set_ip(match address {
            SocketAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
            SocketAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
        });
    }
    dialled
}

fn tell_how_to_join(settings: &Settings, prepared: &Prepared, control: SocketAddr) {
    let token = if settings.join_token_drawn { settings.join_token.as_str() } else { "..." };
    let tp_ranks = match settings.tp_size {
        1 => String::new(),
        tp_size => format!(" --tp-rank 0..{}", tp_size - 1),
    };
    say(&format!(
        "waiting for {} workers: PACELINE_JOIN_TOKEN={token} {} -m paceline.worker --daemon-address {} --dp-rank 0..{}\
{tp_ranks} --model {}",
        settings.dp_size * settings.tp_size,
        settings.python,
        reachable(control),
        settings.dp_size - 1,
        prepared.path.display()
    ));
}

/// Says when the fleet is ready, stops being so, and is again.
async fn watch(handle: Handle, url: String, model_name: String, parallelism: String) {
    let mut was_ready = false;
    let mut first = true;
    loop {
        let status = handle.status();
        if status.ready != was_ready {
            was_ready = status.ready;
            let ranks = status.ranks.len();
            match (status.ready, first) {
                (true, true) => {
                    first = false;
                    let limits = handle.limits();
                    let noun = if ranks == 1 { "rank" } else { "ranks" };
                    say(&format!(
                        "ready {url} serves {model_name} on {ranks} {noun}{parallelism}, each with {} requests and {} KV tokens",
                        limits.max_num_seqs,
                        u64::from(limits.kv_blocks) * u64::from(limits.block_size)
                    ));
                }
                (true, false) => tracing::info!("every rank is in service again"),
                (false, _) if status.draining => tracing::info!("no new request is taken: /ready answers 503"),
                (false, _) => tracing::warn!("not every rank is in service: /ready answers 503"),
            }
        }
        tokio::time::sleep(WATCH_INTERVAL).await;
    }
}
