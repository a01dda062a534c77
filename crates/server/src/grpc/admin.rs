//! `paceline.v1.Admin`: what operators ask.

use std::pin::Pin;
use std::sync::Arc;

use axum::body::Bytes;
use futures_util::Stream;
use futures_util::stream::unfold;
use paceline_engine::{BlockKey, CacheChange, CacheEvents as EngineEvents, Gate as EngineGate, RankStatus};
use paceline_proto::v1::admin_server::Admin;
use paceline_proto::v1::cache_event::Event;
use paceline_proto::v1::{
    AbortRequest, AbortResponse, BlockRemoved, BlockStored, CacheCleared, CacheEvent, CacheEvents, DrainRequest,
    FleetState, Gate, GetStatusRequest, PauseMode, PauseRequest, RankLoad, ResetPrefixCacheRequest,
    ResetPrefixCacheResponse, ResumeRequest, SubscribeCacheEventsRequest,
};
use tonic::{Request, Response, Status};

use crate::admin::{Pause, abort, allowed, known_rank, pause, resume};
use crate::api_error::ApiError;
use crate::app::App;

/// The service.
pub(super) struct AdminService {
    app: App,
}

impl AdminService {
    pub(super) fn new(app: App) -> Self {
        Self { app }
    }

    fn state(&self) -> Response<FleetState> {
        Response::new(state(&self.app))
    }
}

type Events = Pin<Box<dyn Stream<Item = Result<CacheEvents, Status>> + Send>>;

#[tonic::async_trait]
impl Admin for AdminService {
    async fn get_status(&self, _: Request<GetStatusRequest>) -> Result<Response<FleetState>, Status> {
        Ok(self.state())
    }

    async fn pause(&self, request: Request<PauseRequest>) -> Result<Response<FleetState>, Status> {
        let PauseRequest { dp_rank, mode, clear_cache } = request.into_inner();
        let mode = match PauseMode::try_from(mode) {
            Ok(PauseMode::Unspecified | PauseMode::Keep) => Pause::Keep,
            Ok(PauseMode::Wait) => Pause::Wait,
            Ok(PauseMode::Abort) => Pause::Abort,
            Err(_) => return Err(ApiError::invalid("mode", format!("there is no pause mode {mode}")).into()),
        };
        pause(&self.app, dp_rank, mode, clear_cache).await?;
        Ok(self.state())
    }

    async fn resume(&self, request: Request<ResumeRequest>) -> Result<Response<FleetState>, Status> {
        resume(&self.app, request.into_inner().dp_rank).await?;
        Ok(self.state())
    }

    async fn drain(&self, request: Request<DrainRequest>) -> Result<Response<FleetState>, Status> {
        let DrainRequest { dp_rank, wait } = request.into_inner();
        allowed(&self.app)?;
        known_rank(&self.app, dp_rank)?;
        self.app.handle.set_gate(dp_rank, EngineGate::Draining, wait).await.map_err(ApiError::from)?;
        Ok(self.state())
    }

    async fn abort(&self, request: Request<AbortRequest>) -> Result<Response<AbortResponse>, Status> {
        let AbortRequest { request_ids, all } = request.into_inner();
        if all != request_ids.is_empty() {
            let message = "give the request_ids that are to end, or all=true, and not both";
            return Err(ApiError::invalid("request_ids", message).into());
        }
        let aborted = abort(&self.app, (!all).then_some(request_ids)).await?;
        Ok(Response::new(AbortResponse { aborted }))
    }

    async fn reset_prefix_cache(
        &self,
        _: Request<ResetPrefixCacheRequest>,
    ) -> Result<Response<ResetPrefixCacheResponse>, Status> {
        allowed(&self.app)?;
        self.app.handle.reset_prefix_cache().await.map_err(ApiError::from)?;
        Ok(Response::new(ResetPrefixCacheResponse {}))
    }

    type SubscribeCacheEventsStream = Events;

    async fn subscribe_cache_events(
        &self,
        request: Request<SubscribeCacheEventsRequest>,
    ) -> Result<Response<Events>, Status> {
        allowed(&self.app)?;
        let only = request.into_inner().dp_rank;
        known_rank(&self.app, only)?;
        let subscription = self.app.handle.subscribe_cache().await.map_err(ApiError::from)?;
        let block_size = self.app.handle.limits().block_size;
        let stream = unfold(subscription, move |mut subscription| async move {
            loop {
                let (missed, events) = subscription.next().await?;
                if only.is_none_or(|only| only == events.dp_rank) {
                    return Some((Ok(message(missed, &events, block_size)), subscription));
                }
            }
        });
        Ok(Response::new(Box::pin(stream)))
    }
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

fn state(app: &App) -> FleetState {
    let status = app.handle.status();
    FleetState {
        ready: status.ready,
        draining: status.draining,
        waiting: count(status.waiting),
        waiting_tokens: status.waiting_tokens,
        ranks: status.ranks.iter().map(rank_load).collect(),
    }
}

fn rank_load(rank: &RankStatus) -> RankLoad {
    let gate = match rank.gate {
        EngineGate::Open => Gate::Open,
        EngineGate::Finishing => Gate::Finishing,
        EngineGate::Paused => Gate::Paused,
        EngineGate::Draining => Gate::Draining,
    };
    RankLoad {
        dp_rank: rank.dp_rank,
        state: rank.state.name().to_owned(),
        gate: gate.into(),
        running: count(rank.running),
        load_tokens: rank.load_tokens,
        kv_blocks_used: rank.kv_blocks_used,
        kv_blocks_cached: rank.kv_blocks_cached,
        kv_blocks: rank.kv_blocks_total,
        restarts: rank.restarts,
    }
}

fn hash(key: BlockKey) -> Bytes {
    Bytes::copy_from_slice(&key.get().to_be_bytes())
}

fn message(missed: u64, events: &Arc<EngineEvents>, block_size: u32) -> CacheEvents {
    let event = |change: &CacheChange| CacheEvent {
        event: Some(match change {
            CacheChange::Stored { key, parent, tokens } => Event::Stored(BlockStored {
                block_hash: hash(*key),
                parent_block_hash: parent.map(hash),
                token_ids: tokens.clone(),
            }),
            CacheChange::Removed { key } => Event::Removed(BlockRemoved { block_hash: hash(*key) }),
            CacheChange::Cleared => Event::Cleared(CacheCleared {}),
        }),
    };
    CacheEvents {
        dp_rank: events.dp_rank,
        first_sequence: events.first_sequence,
        missed,
        block_size,
        events: events.changes.iter().map(event).collect(),
    }
}
