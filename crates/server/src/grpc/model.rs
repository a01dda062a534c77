//! `paceline.v1.Model`: what is known of the model, and its tokenizer.

use paceline_proto::v1::model_server::Model;
use paceline_proto::v1::tokenize_request::Prompt as PromptMessage;
use paceline_proto::v1::{
    DetokenizeRequest, DetokenizeResponse, GetModelInfoRequest, ModelInfo, RankInfo, TokenizeRequest, TokenizeResponse,
};
use tonic::{Request, Response, Status};

use super::generation::chat_input;
use crate::api_error::ApiError;
use crate::app::App;
use crate::generate::{Prompt, detokenize, tokenize_alone};

/// The service.
pub(super) struct ModelService {
    app: App,
}

impl ModelService {
    pub(super) fn new(app: App) -> Self {
        Self { app }
    }
}

#[tonic::async_trait]
impl Model for ModelService {
    async fn get_model_info(&self, _: Request<GetModelInfoRequest>) -> Result<Response<ModelInfo>, Status> {
        let (options, limits, status) = (&self.app.options, self.app.handle.limits(), self.app.handle.status());
        let settings = options.tokenizer.settings();
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let ranks = status.ranks.iter().map(|rank| RankInfo {
            dp_rank: rank.dp_rank,
            state: rank.state.name().to_owned(),
            running: count(rank.running),
            kv_blocks_used: rank.kv_blocks_used,
        });
        Ok(Response::new(ModelInfo {
            model: options.model_name.clone(),
            root: options.model_root.clone(),
            vocab_size: count(options.tokenizer.vocab_size()),
            max_model_len: limits.max_model_len,
            dp_size: limits.dp_size,
            block_size: limits.block_size,
            kv_blocks: limits.kv_blocks,
            eos_token_ids: settings.eos_token_ids.clone(),
            bos_token_id: settings.bos_token_id,
            chat_template: options.tokenizer.chat_template().map(str::to_owned),
            waiting: count(status.waiting),
            ranks: ranks.collect(),
        }))
    }

    async fn tokenize(&self, request: Request<TokenizeRequest>) -> Result<Response<TokenizeResponse>, Status> {
        let message = request.into_inner();
        let prompt = match message.prompt {
            Some(PromptMessage::Text(text)) => {
                Prompt::Text { text, add_special_tokens: message.add_special_tokens.unwrap_or(true) }
            }
            Some(PromptMessage::Chat(chat)) => Prompt::Chat {
                input: chat_input(chat)?,
                add_special_tokens: message.add_special_tokens.unwrap_or(false),
            },
            None => return Err(ApiError::invalid("prompt", "a prompt is required").into()),
        };
        let prompt = tokenize_alone(self.app.options.tokenizer.clone(), prompt, "prompt").await?;
        Ok(Response::new(TokenizeResponse { token_ids: prompt.ids }))
    }

    async fn detokenize(&self, request: Request<DetokenizeRequest>) -> Result<Response<DetokenizeResponse>, Status> {
        let text = detokenize(&self.app.options.tokenizer, request.into_inner().token_ids, "token_ids").await?;
        Ok(Response::new(DetokenizeResponse { text }))
    }
}
