//! `paceline.v1.Generation`: the same calls as over HTTP, with the same answers and matching codes.

use std::pin::Pin;

use futures_util::Stream;
use futures_util::StreamExt;
use futures_util::stream::{once, unfold};
use paceline_engine::TokenLogprobs;
use paceline_grammar::{JsonStyle, Source};
use paceline_proto::v1::generate_request::Prompt as PromptMessage;
use paceline_proto::v1::generate_response::StopReason as StopReasonMessage;
use paceline_proto::v1::generation_server::Generation as GenerationRpc;
use paceline_proto::v1::structured_outputs::Constraint as StructureMessage;
use paceline_proto::v1::{
    ChatPrompt, FinishReason, GenerateRequest, GenerateResponse, StructuredOutputs, TokenLogprob, TopLogprob,
    Usage as UsageMessage,
};
use paceline_text::ChatInput;
use serde_json::{Value, json};
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::{Request, Response, Status};

use crate::api_error::ApiError;
use crate::app::App;
use crate::generate::{
    Call, CallRecord, Delta, FinishCause, Generation, MaxTokens, Prompt, PromptReport, SamplingFields, StopReason,
    Stopping, Structure, Thinking, TokenPiece, Truncate, admit,
};
use crate::http::{checked_id, dp_rank};
use crate::limits::COMPLETION_TOKENS_DEFAULT;
use crate::openai::structural_tag_of;
use crate::traces::TraceContext;

/// The service.
pub(super) struct GenerationService {
    app: App,
}

impl GenerationService {
    pub(super) fn new(app: App) -> Self {
        Self { app }
    }
}

type Responses = Pin<Box<dyn Stream<Item = Result<GenerateResponse, Status>> + Send>>;

#[tonic::async_trait]
impl GenerationRpc for GenerationService {
    type GenerateStream = Responses;

    async fn generate(&self, request: Request<GenerateRequest>) -> Result<Response<Responses>, Status> {
        let (metadata, _, message) = request.into_parts();
        let mut record = CallRecord::new(&self.app);
        let continuous_usage = message.continuous_usage.unwrap_or(false);
        let call = call(&self.app, &metadata, message).map_err(|error| record.refuse(error))?;
        let (id, continuous) = (call.id.clone(), continuous_usage);
        let mut generation = admit(&self.app, call, record).await?;
        // What fails before the first token fails the call itself, as over HTTP.
        let first = match generation.next().await {
            Some(delta) => Some(Ok(response(&id, delta?, &generation, continuous))),
            None => None,
        };
        let rest = unfold((generation, id.clone(), continuous), async |(mut generation, id, continuous)| {
            let item = match generation.next().await? {
                Ok(delta) => Ok(response(&id, delta, &generation, continuous)),
                Err(error) => Err(Status::from(error)),
            };
            Some((item, (generation, id, continuous)))
        });
        let responses: Responses = Box::pin(once(std::future::ready(first)).filter_map(std::future::ready).chain(rest));
        let mut answer = Response::new(responses);
        if let Ok(value) = MetadataValue::try_from(&id) {
            answer.metadata_mut().insert("x-request-id", value);
        }
        Ok(answer)
    }
}

fn call(app: &App, metadata: &MetadataMap, message: GenerateRequest) -> Result<Call, ApiError> {
    let served = &app.options.model_name;
    if let Some(model) = message.model.as_ref().filter(|model| *model != served) {
        return Err(ApiError::unknown_model(model, served));
    }
    let id = match metadata.get("x-request-id") {
        Some(given) => checked_id(given.as_bytes(), "x-request-id")?,
        None => format!("{:016x}", rand::random::<u64>()),
    };
    let sampling = message.sampling.unwrap_or_default();
    let stopping = message.stopping.unwrap_or_default();
    let add_special_tokens = message.add_special_tokens.unwrap_or(true);
    let is_chat = matches!(message.prompt, Some(PromptMessage::Chat(_)));
    let (prompt, unlimited) = match message.prompt {
        Some(PromptMessage::Text(text)) => {
            (Prompt::Text { text, add_special_tokens }, MaxTokens::UpTo(COMPLETION_TOKENS_DEFAULT))
        }
        Some(PromptMessage::TokenIds(ids)) => (Prompt::Tokens(ids.ids), MaxTokens::UpTo(COMPLETION_TOKENS_DEFAULT)),
        Some(PromptMessage::Chat(chat)) => {
            (Prompt::Chat { input: chat_input(chat)?, add_special_tokens: false }, MaxTokens::AsFits)
        }
        None => return Err(ApiError::invalid("prompt", "a prompt is required")),
    };
    let thinking = Thinking {
        format: if is_chat { app.options.chat.reasoning } else { None },
        budget: message.thinking_token_budget,
    };
    Ok(Call {
        id,
        prompts: vec![prompt],
        prompt_field: "prompt",
        choices: message.n.unwrap_or(1),
        sampling: SamplingFields {
            temperature: sampling.temperature,
            top_p: sampling.top_p,
            top_k: sampling.top_k,
            min_p: sampling.min_p,
            seed: sampling.seed,
            logprobs: message.logprobs,
            prompt_logprobs: message.prompt_logprobs,
            presence_penalty: sampling.presence_penalty,
            frequency_penalty: sampling.frequency_penalty,
            repetition_penalty: sampling.repetition_penalty,
            logit_bias: biases(sampling.logit_bias),
            allowed_token_ids: sampling.allowed_token_ids.map(|allowed| allowed.ids),
            bad_words: sampling.bad_words,
            min_tokens: stopping.min_tokens.unwrap_or(0),
        },
        stopping: Stopping {
            max_tokens: stopping
                .max_tokens
                .map_or(unlimited, |tokens| MaxTokens::Asked { tokens, field: "max_tokens" }),
            stop: stopping.stop,
            stop_token_ids: stopping.stop_token_ids,
            ignore_eos: stopping.ignore_eos.unwrap_or(false),
            include_stop: stopping.include_stop_str_in_output.unwrap_or(false),
        },
        echo: false,
        return_token_ids: false,
        truncate: truncate(message.truncate_prompt_tokens)?,
        structure: message.structured_outputs.map(structure).transpose()?,
        thinking,
        skip_special_tokens: message.skip_special_tokens.unwrap_or(true),
        priority: message.priority.unwrap_or(0),
        cache_salt: message.cache_salt,
        dp_rank: dp_rank(metadata.get("x-data-parallel-rank").map(MetadataValue::as_bytes))?,
        trace: metadata.get("traceparent").and_then(|value| TraceContext::read(value.as_bytes())),
    })
}

/// What the answer has to be.
fn structure(message: StructuredOutputs) -> Result<Structure, ApiError> {
    let style = JsonStyle {
        is_compact: message.disable_any_whitespace.unwrap_or(false),
        is_closed: message.disable_additional_properties.unwrap_or(true),
    };
    let named = |field: &str, source| Ok(Structure::new(format!("structured_outputs.{field}"), source));
    match message.constraint {
        Some(StructureMessage::Json(text)) => {
            const FIELD: &str = "structured_outputs.json";
            let schema: Value = serde_json::from_str(&text)
                .map_err(|error| ApiError::invalid(FIELD, format!("{FIELD} is not valid JSON: {error}")))?;
            named("json", Source::JsonSchema(schema, style))
        }
        Some(StructureMessage::Regex(text)) => named("regex", Source::Regex(text)),
        Some(StructureMessage::Choice(choices)) => named("choice", Source::Choice(choices.texts)),
        Some(StructureMessage::Grammar(text)) => named("grammar", Source::Lark(text)),
        Some(StructureMessage::StructuralTag(text)) => {
            let pattern = structural_tag_of("structured_outputs.structural_tag", Value::from(text), style)?;
            named("structural_tag", Source::Pattern(pattern))
        }
        Some(StructureMessage::JsonObject(true)) => named("json_object", Source::JsonObject(style)),
        Some(StructureMessage::JsonObject(false)) | None => {
            let message =
                "structured_outputs needs one of json, regex, choice, grammar, json_object and structural_tag";
            Err(ApiError::invalid("structured_outputs", message))
        }
    }
}

/// In order of their tokens: a map has none of its own.
fn biases(map: std::collections::HashMap<u32, f32>) -> Vec<(u32, f32)> {
    let mut biases: Vec<(u32, f32)> = map.into_iter().collect();
    biases.sort_unstable_by_key(|(token_id, _)| *token_id);
    biases
}

fn truncate(tokens: Option<u32>) -> Result<Option<Truncate>, ApiError> {
    match tokens {
        Some(0) => Err(ApiError::invalid("truncate_prompt_tokens", "truncate_prompt_tokens must be at least 1, got 0")),
        tokens => Ok(tokens.map(Truncate::Tokens)),
    }
}

pub(super) fn chat_input(chat: ChatPrompt) -> Result<ChatInput, ApiError> {
    if chat.messages.is_empty() {
        return Err(ApiError::invalid("chat.messages", "messages must not be empty"));
    }
    if let Some(index) = chat.messages.iter().position(|message| message.role.is_empty()) {
        return Err(ApiError::invalid(format!("chat.messages[{index}].role"), "a message needs a role"));
    }
    Ok(ChatInput {
        messages: chat
            .messages
            .into_iter()
            .map(|message| json!({"role": message.role, "content": message.content}))
            .collect(),
        add_generation_prompt: chat.add_generation_prompt.unwrap_or(true),
        ..ChatInput::default()
    })
}

fn response(id: &str, delta: Delta, generation: &Generation, continuous: bool) -> GenerateResponse {
    let usage = (continuous || generation.is_done()).then(|| {
        let usage = generation.usage();
        let count = |tokens: usize| u32::try_from(tokens).unwrap_or(u32::MAX);
        UsageMessage {
            prompt_tokens: count(usage.prompt_tokens),
            completion_tokens: count(usage.completion_tokens),
            cached_tokens: count(usage.cached_tokens),
        }
    });
    let (finish_reason, stop_reason) = match delta.finish {
        None => (None, None),
        Some(finish) => {
            let reason = match finish.cause {
                FinishCause::Stop => FinishReason::Stop,
                FinishCause::Length => FinishReason::Length,
                FinishCause::Abort => FinishReason::Abort,
            };
            let stop = finish.stop_reason.map(|reason| match reason {
                StopReason::Text(text) => StopReasonMessage::StopText(text),
                StopReason::Token(token_id) => StopReasonMessage::StopTokenId(token_id),
            });
            (Some(reason.into()), stop)
        }
    };
    GenerateResponse {
        request_id: id.to_owned(),
        index: delta.index,
        text: delta.text,
        token_ids: delta.token_ids,
        logprobs: delta.pieces.into_iter().map(token_logprob).collect(),
        finish_reason,
        prompt_logprobs: delta.prompt.map(|report| prompt_logprobs(*report)).unwrap_or_default(),
        usage,
        stop_reason,
    }
}

fn prompt_logprobs(report: PromptReport) -> Vec<TokenLogprob> {
    let of = |(token_id, found): (u32, TokenLogprobs)| TokenLogprob {
        token_id,
        logprob: found.sampled,
        top: found.top.into_iter().map(|(token_id, logprob)| TopLogprob { token_id, logprob }).collect(),
    };
    report.token_ids.into_iter().skip(1).zip(report.logprobs).map(of).collect()
}

fn token_logprob(piece: TokenPiece) -> TokenLogprob {
    TokenLogprob {
        token_id: piece.token_id,
        logprob: piece.logprob.unwrap_or_default(),
        top: piece.top.into_iter().map(|(token_id, logprob)| TopLogprob { token_id, logprob }).collect(),
    }
}
