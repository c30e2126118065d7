"""Flags of `vllm serve` (0.32, 0.33, and older ones that are still in use), and what they are here."""

from __future__ import annotations

from homenode.equivalents.equivalent import AlwaysSo, Equivalent, ModelName, NoEffect, NotOffered, Taken
from homenode.kv_types import NAMED, SMALLEST

_AUTO = AlwaysSo("it is the default")
_ONE = {"1": AlwaysSo("there is one")}
_COMPILED = NoEffect("nothing is compiled at the start; --enforce-eager leaves out graphs of an accelerator")
_KERNELS = NoEffect("kernels are chosen by what the processor or the device can do (--isa, --attention-backend)")
_GPUS = NoEffect("it is of how GPUs exchange what they computed, which homenode does in its own way")
_PICTURES = NoEffect("images are prepared as the model's files say, sound and videos are not read (docs/pictures.md)")
_ADAPTERS = NotOffered("homenode serves no LoRA adapters: merge the adapter into the model and serve that")
_OF_ADAPTERS = NoEffect("homenode serves no LoRA adapters")
_SPECULATION = NoEffect("how much is drafted follows from what is measured, and answers are those without drafts")
_NO_DRAFTER = NotOffered("give --speculative ngram, draft or mtp")
_HOSTS = NotOffered(
    "several hosts are one engine with --executor ray, or one server each behind a router; on one host "
    "--data-parallel-size and --tensor-parallel-size start all there is"
)
_CONTEXT = NotOffered("a context is not divided among workers; give --tensor-parallel-size or --pipeline-parallel-size")
_CONFIG = NotOffered("what a model is stands in its files: change config.json in a copy of its folder")
_OFFLOAD = NoEffect("weights and KV lie in main memory unless --stage-devices names accelerators for some layers")
_CACHES = NoEffect("the prefix cache is the KV memory itself (--kv-cache-memory, --enable-prefix-caching)")
_STATES = NoEffect("states of such layers are kept as the model needs (--state-snapshot-interval)")
_SCHEDULE = NoEffect("the scheduler decides it: see --step-time, --max-num-batched-tokens and docs/scheduling.md")
_PROMPTS = NoEffect("prompts share the time of a step, --step-time, the one with the least left first")
_TURNS = NoEffect("of prompts of one priority the one with the least left to compute goes first (docs/scheduling.md)")
_FETCHED = NoEffect("weights are mapped from their files and read ahead")
_TRACES = NoEffect("figures are under /metrics, and the log has a line every ten seconds while it is busy")
_PLUGINS = NotOffered("no code of others is loaded into the server")
_REMOTE_CODE = NoEffect("remote code is never run: architectures are homenode's own (docs/models.md)")
_FORMATS = NoEffect("the model's files say how they are quantised, and are read as what they are")
_PYTORCH = NoEffect("it is of the start of PyTorch's processes; --worker-timeout is the one of workers")
_LOG = NoEffect("--access-log has a line for each HTTP request")
_PAGES = NoEffect("answers to browsers are those of --allowed-origins")
_ELASTIC = NotOffered("engines are as many as at the start: --data-parallel-size")

EQUIVALENTS: tuple[Equivalent, ...] = (
    # The model
    Equivalent("--model=", ModelName()),
    Equivalent("--served-model-name=...", Taken("--served-model-name")),
    Equivalent("--trust-remote-code", _REMOTE_CODE),
    Equivalent(
        "--dtype=",
        values={
            "half": Taken("--dtype", "float16"),
            "float": Taken("--dtype", "float32"),
            "f16": Taken("--dtype", "float16"),
            "fp16": Taken("--dtype", "float16"),
            "bf16": Taken("--dtype", "bfloat16"),
            "f32": Taken("--dtype", "float32"),
            "fp32": Taken("--dtype", "float32"),
        },
    ),
    Equivalent(
        "--quantization= -q=",
        NotOffered("to quantise while loading give --quantize q8_0 or q4_0; quantised files need no setting"),
        values=dict.fromkeys(
            "awq awq_marlin gptq gptq_marlin gguf compressed-tensors mxfp4 modelopt auto-round gpt_oss_mxfp4 inc "
            "none auto autoround".split(),
            _FORMATS,
        ),
    ),
    Equivalent("--allow-deprecated-quantization --quantization-config=", _FORMATS),
    Equivalent("--model-class-overrides= --hf-overrides= --hf-config-path=", _CONFIG),
    Equivalent("--config-format= --model-impl= --tokenizer-mode= --convert=", NoEffect("files tell what they are")),
    Equivalent("--code-revision=", _REMOTE_CODE),
    Equivalent("--tokenizer-revision=", NoEffect("model and vocabulary are of one revision (--revision)")),
    Equivalent("--hf-token=", NotOffered("set the variable HF_TOKEN, or log in with `hf auth login`")),
    Equivalent("--download-dir=", NotOffered("set the variable HF_HOME")),
    Equivalent(
        "--load-format=",
        _FORMATS,
        values={
            **dict.fromkeys("auto safetensors gguf mistral hf".split(), AlwaysSo("files are read as what they are")),
            "dummy": NotOffered("`homenode simulate` and `homenode bench` need no weights"),
        },
    ),
    Equivalent(
        "--safetensors-load-strategy= --safetensors-prefetch-num-threads= --safetensors-prefetch-block-size= "
        "--model-loader-extra-config= --ignore-patterns=... --use-tqdm-on-load --pt-load-map-location=",
        _FETCHED,
    ),
    Equivalent("--skip-tokenizer-init", NotOffered("a server needs the vocabulary; prompts may be token ids")),
    Equivalent("--disable-sliding-window --disable-cascade-attn", NoEffect("attention is as the model's files say")),
    Equivalent("--max-logprobs=", NoEffect("a request may ask for up to 20")),
    Equivalent(
        "--logprobs-mode=",
        NotOffered("logprobs are those of the model before samplers, which is raw_logprobs"),
        values={"raw_logprobs": AlwaysSo("logprobs are those of the model before samplers")},
    ),
    Equivalent("--use-fp64-gumbel --return-sampling-mask", NoEffect("how a token is drawn is in docs/sampling.md")),
    Equivalent("--enable-return-routed-experts", NoEffect("--expert-counts keeps how often experts were chosen")),
    Equivalent("--enable-trace-replay --aux-output-config=", NoEffect("answers have no further outputs")),
    Equivalent("--pooler-config= --override-pooler-config=", NotOffered("give --pooling mean, cls or last")),
    Equivalent("--runner=", values={"draft": NotOffered("name a model that drafts with --speculative-model")}),
    Equivalent(
        "--task=",
        NotOffered("give --runner generate or pooling"),
        values={
            "auto": _AUTO,
            "generate": Taken("--runner", "generate"),
            **dict.fromkeys("embed embedding score classify reward".split(), Taken("--runner", "pooling")),
        },
    ),
    Equivalent("--generation-config=", values={"vllm": Taken("--generation-config", "none")}),
    Equivalent(
        "--override-generation-config=",
        NotOffered("requests say it, or generation_config.json in the model's folder (--generation-config)"),
    ),
    Equivalent("--logits-processors=... --io-processor-plugin= --worker-cls= --worker-extension-cls=", _PLUGINS),
    Equivalent("--scheduler-cls= --middleware=... --tool-parser-plugin= --reasoning-parser-plugin=", _PLUGINS),
    Equivalent(
        "--enable-sleep-mode --sleep-mode-offload-cudagraph --sleep-preserve-parameter-names=... "
        "--enable-cumem-allocator --enable-nccl-comm-suspend",
        NoEffect("KV memory that is not used goes back to the machine by itself (--kv-cache-release)"),
    ),
    Equivalent("--renderer-num-workers=", NoEffect("each process of --api-server-count renders for itself")),
    Equivalent("--engram-config= --diffusion-config= -dc=", NoEffect("no such part of a model is computed apart")),
    # Attention, kernels, graphs
    Equivalent(
        "--attention-backend=",
        values={
            **dict.fromkeys("torch_sdpa sdpa torch_native cpu_attn".split(), Taken("--attention-backend", "sdpa")),
            **dict.fromkeys("flash_attn fa2 fa3 fa4".split(), Taken("--attention-backend", "flash")),
            "flashinfer": Taken("--attention-backend", "flashinfer"),
            **dict.fromkeys("triton_attn triton".split(), Taken("--attention-backend", "tiled")),
        },
    ),
    Equivalent("--attention-config= -ac=", NotOffered("give --attention-backend tiled, sdpa, flash or flashinfer")),
    Equivalent(
        "--mamba-backend= --mamba-ssu-algorithm= --gdn-prefill-backend= --kda-prefill-backend= --kda-decode-backend= "
        "--ir-op-priority= --enable-flashinfer-autotune --moe-backend= --linear-backend= --kernel-config= "
        "--sparse-indexer-topk-backend= --performance-mode= --enable-flash-late-interaction",
        _KERNELS,
    ),
    Equivalent(
        "--enable-mamba-cache-stochastic-rounding --mamba-cache-philox-rounds= --mamba-cache-dtype= "
        "--mamba-ssm-cache-dtype= --mamba-block-size= --mamba-cache-mode= --enable-mamba-shared-prefix-checkpoint "
        "--replayssm-buffer-len= --use-replayssm",
        _STATES,
    ),
    Equivalent(
        "--compilation-config= -cc= --optimization-level= -O= --cudagraph-capture-sizes=... "
        "--max-cudagraph-capture-size= --max-seq-len-to-capture= --enable-layerwise-nvtx-tracing --cudagraph-metrics "
        "--jit-monitor-mode= --jit-monitor-verbose --use-v2-block-manager",
        _COMPILED,
    ),
    Equivalent(
        "--additional-config=",
        NoEffect("what it binds on NPU hosts, `homenode run`, `homenode bind` and --numa do here"),
    ),
    # Workers and hosts
    Equivalent("--tensor-parallel-size= -tp=", Taken("--tensor-parallel-size")),
    Equivalent("--pipeline-parallel-size= -pp=", Taken("--pipeline-parallel-size")),
    Equivalent("--data-parallel-size= -dp=", Taken("--data-parallel-size")),
    Equivalent("--enable-expert-parallel -ep", Taken("--enable-expert-parallel")),
    Equivalent("--api-server-count= -asc=", Taken("--api-server-count")),
    Equivalent(
        "--distributed-executor-backend=",
        NotOffered("give --executor inline, processes or ray"),
        values={
            "mp": Taken("--executor", "processes"),
            "uni": Taken("--executor", "inline"),
            "ray": Taken("--executor", "ray"),
        },
    ),
    Equivalent(
        "--expert-placement-strategy=",
        NotOffered("give --expert-placement spread, packed or a file"),
        values={
            "linear": Taken("--expert-placement", "packed"),
            "round_robin": Taken("--expert-placement", "spread"),
        },
    ),
    Equivalent("--nnodes=", _HOSTS, values=_ONE),
    Equivalent("--node-rank=", _HOSTS, values={"0": AlwaysSo("there is one host")}),
    Equivalent("--master-addr= --master-port=", NoEffect("Ray's address is --ray-address")),
    Equivalent("--data-parallel-size-local= -dpl=", _HOSTS, values=_ONE),
    Equivalent(
        "--data-parallel-rank= -dpn= --data-parallel-start-rank= -dpr= --data-parallel-address= -dpa= "
        "--data-parallel-rpc-port= -dpp= --data-parallel-hybrid-lb -dph --data-parallel-external-lb -dpe "
        "--data-parallel-multi-port-external-lb -dpm --headless",
        _HOSTS,
    ),
    Equivalent("--data-parallel-backend= -dpb=", _HOSTS, values={"mp": AlwaysSo("engines are processes")}),
    Equivalent(
        "--data-parallel-supervisor-port= --dp-supervisor-probe-interval-s= --dp-supervisor-probe-timeout-s= "
        "--dp-supervisor-probe-failure-threshold=",
        NoEffect("the one server watches its engines and restarts them"),
    ),
    Equivalent("--decode-context-parallel-size= -dcp= --prefill-context-parallel-size= -pcp=", _CONTEXT, values=_ONE),
    Equivalent(
        "--dcp-comm-backend= --dcp-q-replicate --dcp-kv-cache-interleave-size= --cp-kv-cache-interleave-size=",
        NoEffect("a context is not divided among workers"),
    ),
    Equivalent(
        "--all2all-backend= --enable-dbo --dbo-decode-token-threshold= --dbo-prefill-token-threshold= "
        "--dp-sync-interval= --disable-nccl-for-dp-synchronization --disable-custom-all-reduce --enable-hc-sp "
        "--enable-batch-sharded-sampling --enable-ep-weight-filter --enable-shm-tensor-arena",
        _GPUS,
    ),
    Equivalent("--enable-elastic-ep --elastic-ep-max-dp-size=", _ELASTIC),
    Equivalent(
        "--enable-eplb --eplb-config=",
        NoEffect("--expert-counts keeps what experts are used, and --expert-placement FILE places by it"),
    ),
    Equivalent(
        "--distributed-timeout-seconds= --cpu-distributed-timeout-seconds= --max-parallel-loading-workers= "
        "--ray-workers-use-nsight --enable-fault-tolerance --fault-tolerance-config=",
        _PYTORCH,
    ),
    Equivalent("--device-ids=", NotOffered("give --stage-devices, such as cuda:1")),
    Equivalent(
        "--device=",
        NotOffered("give --stage-devices cpu, cuda:N or npu:N"),
        values={"auto": _AUTO, "cpu": Taken("--stage-devices", "cpu"), "none": Taken("--stage-devices", "cpu")},
    ),
    # Memory
    Equivalent("--kv-cache-memory-bytes=", Taken("--kv-cache-memory")),
    Equivalent("--device-memory-utilization=", Taken("--gpu-memory-utilization")),
    Equivalent(
        "--kv-cache-dtype=",
        values={
            "bfloat16": Taken("--kv-cache-dtype", "bf16"),
            "float32": Taken("--kv-cache-dtype", "f32"),
            "int8_per_token_head": Taken("--kv-cache-dtype", "int8"),
            "float16": NotOffered(f"keys and values are {NAMED}: take bf16, which has as many bytes"),
            **dict.fromkeys(
                "fp8 fp8_e4m3 fp8_e5m2 fp8_inc fp8_per_token_head fp8_ds_mla nvfp4 nvfp4_4over6 nvfp4_ds_mla "
                "int4_per_token_head turboquant_k8v4 turboquant_4bit_nc turboquant_k3v4_nc turboquant_3bit_nc "
                "ultraquant_4bit fp4_e2m1 mxfp8".split(),
                NotOffered(f"keys and values are {NAMED}: take {SMALLEST}, the smallest there is"),
            ),
        },
    ),
    Equivalent("--num-gpu-blocks-override=", NotOffered("give the size of KV memory: --kv-cache-memory")),
    Equivalent(
        "--swap-space=",
        NoEffect("nothing is swapped: a preempted request is computed again (--kv-cache-memory says how much fits)"),
    ),
    Equivalent(
        "--kv-offloading-size= --kv-offloading-backend= --offload-backend= --cpu-offload-gb= --cpu-offload-params=... "
        "--offload-group-size= --offload-num-in-group= --offload-prefetch-step= --offload-params=... "
        "--weight-transfer-config=",
        _OFFLOAD,
    ),
    Equivalent(
        "--prefix-caching-hash-algo= --prefix-cache-retention-interval= --prefix-match-unit= "
        "--kv-sharing-fast-prefill --swa-bounded-replay --disable-hybrid-kv-cache-manager "
        "--kv-cache-dtype-skip-layers=...",
        _CACHES,
    ),
    Equivalent("--ec-transfer-config= --ec-manager-config=", _PICTURES),
    # The scheduler
    Equivalent("--max-num-queued-reqs=", Taken("--max-num-queued-requests")),
    Equivalent(
        "--max-num-partial-prefills= --max-long-partial-prefills= --long-prefill-token-threshold= "
        "--long-prefill-token-threshold-adaptive",
        _PROMPTS,
    ),
    Equivalent(
        "--max-num-scheduled-tokens= --max-num-active-seqs= "
        "--scheduler-reserve-full-isl --watermark= --prefill-schedule-interval= --disable-chunked-mm-input "
        "--num-lookahead-slots= --num-scheduler-steps= --multi-step-stream-outputs --preemption-mode=",
        _SCHEDULE,
    ),
    Equivalent("--async-scheduling", AlwaysSo("the next step is planned while one is computed")),
    Equivalent(
        "--scheduling-policy=",
        NotOffered("requests may have a priority, and the shortest prompt goes first; see docs/scheduling.md"),
        values={"fcfs": _TURNS, "priority": AlwaysSo("requests with a lower priority go first")},
    ),
    Equivalent("--stream-interval=", NoEffect("a stream has each token when it is there"), values=_ONE),
    # What is not computed here
    Equivalent("--enable-lora --lora-modules=... --default-mm-loras=", _ADAPTERS),
    Equivalent(
        "--max-loras= --max-lora-rank= --lora-dtype= --lora-extra-vocab-size= --enable-tower-connector-lora "
        "--max-cpu-loras= --fully-sharded-loras --lora-target-modules=... --specialize-active-lora "
        "--enable-mixed-moe-lora-format --enable-moe-shared-loras --max-lora-cls-labels=",
        _OF_ADAPTERS,
    ),
    Equivalent("-sc=", Taken("--speculative-config")),
    Equivalent(
        "--spec-method=",
        _NO_DRAFTER,
        values={
            "ngram": Taken("--speculative", "ngram"),
            "suffix": Taken("--speculative", "ngram"),
            "draft_model": Taken("--speculative", "draft"),
            "mtp": Taken("--speculative", "mtp"),
        },
    ),
    Equivalent("--spec-model=", Taken("--speculative-model")),
    Equivalent("--spec-tokens=", Taken("--num-speculative-tokens")),
    Equivalent("--speculative-model=", values={"[ngram]": Taken("--speculative", "ngram")}),
    Equivalent(
        "--per-request-spec-decode-metrics=", NoEffect("a request asks for its figures itself (return_timings)")
    ),
    Equivalent("--watermark-config=", NotOffered("no mark is put into texts")),
    Equivalent(
        "--limit-mm-per-prompt= --enable-mm-embeds --media-io-kwargs= --mm-processor-kwargs= "
        "--mm-processor-cache-gb= --mm-processor-cache-type= --mm-hasher-algorithm= "
        "--mm-shm-cache-max-object-size-mb= --mm-encoder-tp-mode= --mm-encoder-attn-backend= "
        "--mm-encoder-attn-dtype= --mm-encoder-fp8-scale-path= --mm-encoder-fp8-scale-save-path= "
        "--mm-encoder-fp8-scale-save-margin= --interleave-mm-strings --skip-mm-profiling --video-pruning-rate= "
        "--video-pruning-method= --mm-tensor-ipc= --mm-processor-device= --mm-ipc-gpu-memory-gb= "
        "--mm-device-do-normalize "
        "--disable-mm-preprocessor-cache --trust-request-mm-kwargs",
        _PICTURES,
    ),
    Equivalent("--allowed-local-media-path=", Taken("--media-path")),
    Equivalent("--allowed-media-domains=...", Taken("--media-domains")),
    Equivalent("--language-model-only", AlwaysSo("homenode serves the text of such models")),
    Equivalent("--mm-encoder-only", NotOffered("homenode serves the text of such models")),
    # Chat
    Equivalent("--enable-auto-tool-choice", AlwaysSo("models may call tools unless a request says no")),
    Equivalent("--enable-reasoning", AlwaysSo("thoughts are told apart (--reasoning-format)")),
    Equivalent("--chat-template-content-format=", NoEffect("templates are tried for the forms that they take")),
    Equivalent(
        "--trust-request-chat-template --default-chat-template-kwargs=",
        NoEffect("requests say chat_template_kwargs; the template is the model's, or --chat-template"),
    ),
    Equivalent(
        "--response-role=",
        NoEffect("the role of an answer is assistant"),
        values={"assistant": AlwaysSo("the role of an answer is assistant")},
    ),
    Equivalent("--return-tokens-as-token-ids", NoEffect("requests ask for ids: return_token_ids")),
    Equivalent("--exclude-tools-when-tool-choice-none", AlwaysSo("tools are not shown where none may be called")),
    Equivalent("--tool-strict-level=", NoEffect("a tool is strict where a request says so")),
    Equivalent("--tool-server=", NotOffered("tools are run by who asks")),
    Equivalent(
        "--structured-outputs-config= --guided-decoding-backend= --reasoning-config=",
        NoEffect("grammars need no setting: see docs/structured-output.md"),
    ),
    Equivalent(
        "--cohere-is-reasoning-model --cohere-format= --anthropic-disabled-thinking-effort= --tokens-only "
        "--enable-scale-out --fingerprint-mode= --fingerprint-value=",
        NoEffect("the APIs are as docs/server.md has them"),
    ),
    # The server
    Equivalent(
        "--disable-log-requests --no-enable-log-requests",
        AlwaysSo("requests are not logged unless --log-requests is given"),
    ),
    Equivalent("--enable-log-requests", Taken("--log-requests")),
    Equivalent("--enable-log-outputs", Taken("--log-outputs")),
    Equivalent("--enable-log-deltas", NoEffect("an answer is logged when it is over: --log-outputs")),
    Equivalent("--log-error-stack", AlwaysSo("an error of the server itself is logged with its place in the code")),
    Equivalent("--disable-uvicorn-access-log", AlwaysSo("it is off unless --access-log is given")),
    Equivalent("--disable-access-log-for-endpoints=", _LOG),
    Equivalent(
        "--uvicorn-log-level=",
        Taken("--log-level"),
        values={"critical": Taken("--log-level", "error"), "trace": Taken("--log-level", "debug")},
    ),
    Equivalent(
        "--log-level=",
        values={
            "critical": Taken("--log-level", "error"),
            "trace": Taken("--log-level", "debug"),
            "warn": Taken("--log-level", "warning"),
        },
    ),
    Equivalent("--logging-config= --log-config-file=", NotOffered("give --log-level; the log is on standard error")),
    Equivalent("--sse-keep-alive-interval=", Taken("--sse-keep-alive")),
    Equivalent("--api-key=...", Taken("--api-key")),
    Equivalent("--allowed-origins=...", Taken("--allowed-origins")),
    Equivalent("--allow-credentials --allowed-methods=... --allowed-headers=...", _PAGES),
    Equivalent(
        "--ssl-cert-reqs= --ssl-ciphers=",
        NotOffered("with --ssl-ca-certs clients have to show a certificate; ciphers are those of TLS 1.2 and 1.3"),
    ),
    Equivalent("--enable-ssl-refresh", AlwaysSo("certificates are read again when they change")),
    Equivalent("--enable-request-id-headers", AlwaysSo("answers carry the id of their request")),
    Equivalent(
        "--disable-fastapi-docs",
        NoEffect("/docs shows what /openapi.json says; nothing of it is loaded from elsewhere"),
    ),
    Equivalent(
        "--enable-offline-docs --enable-tokenizer-info-endpoint", NoEffect("/docs and /openapi.json describe the API")
    ),
    Equivalent("--h11-max-header-count= --h11-max-incomplete-event-size=", NoEffect("see --max-request-body")),
    Equivalent("--enable-prompt-tokens-details", AlwaysSo("usage has them")),
    Equivalent("--enable-per-request-metrics --enable-force-include-usage", NoEffect("requests ask for usage")),
    Equivalent("--enable-server-load-tracking", AlwaysSo("/load and /metrics have the figures")),
    Equivalent("--grpc --grpc-port=", NotOffered("homenode answers HTTP: --port")),
    Equivalent(
        "--show-hidden-metrics-for-version= --collect-detailed-traces=... --kv-cache-metrics "
        "--kv-cache-metrics-sample= --custom-histogram-buckets= --enable-mfu-metrics "
        "--enable-logging-iteration-details --aggregate-engine-logging --profiler-config=",
        _TRACES,
    ),
    Equivalent("--fail-on-environ-validation", NoEffect("variables are checked in any case")),
    Equivalent("--disable-frontend-multiprocessing", NoEffect("the engine is a process of its own")),
    # Older versions
    Equivalent("--enable-prompt-adapter --prompt-adapters=... --qlora-adapter-name-or-path=", _ADAPTERS),
    Equivalent(
        "--max-prompt-adapters= --max-prompt-adapter-token= --enable-lora-bias --long-lora-scaling-factors=",
        _OF_ADAPTERS,
    ),
    Equivalent(
        "--ngram-prompt-lookup-max= --ngram-prompt-lookup-min= --spec-decoding-acceptance-method= "
        "--typical-acceptance-sampler-posterior-threshold= --typical-acceptance-sampler-posterior-alpha= "
        "--disable-logprobs-during-spec-decoding= --speculative-model-quantization= "
        "--speculative-draft-tensor-parallel-size= --speculative-disable-mqa-scorer --speculative-max-model-len= "
        "--speculative-disable-by-batch-size=",
        _SPECULATION,
    ),
    Equivalent(
        "--guided-decoding-disable-fallback --guided-decoding-disable-any-whitespace "
        "--guided-decoding-disable-additional-properties",
        NoEffect("grammars need no setting: see docs/structured-output.md"),
    ),
    Equivalent(
        "--num-redundant-experts= --eplb-window-size= --eplb-step-interval= --eplb-log-balancedness",
        NoEffect("--expert-counts keeps what experts are used, and --expert-placement FILE places by it"),
    ),
    Equivalent(
        "--tokenizer-pool-size= --tokenizer-pool-type= --tokenizer-pool-extra-config=",
        NoEffect("each process of --api-server-count turns texts into tokens"),
    ),
    Equivalent("--cuda-graph-sizes=... --full-cuda-graph --max-context-len-to-capture=", _COMPILED),
    Equivalent("--rope-theta=", _CONFIG),
    Equivalent("--calculate-kv-scales", NoEffect("keys and values of int8 have a scale of each token and head")),
    Equivalent("--logits-processor-pattern= --override-neuron-config=", _PLUGINS),
    Equivalent("--disable-async-output-proc --scheduler-delay-factor=", _SCHEDULE),
    Equivalent("--worker-use-ray", Taken("--executor", "ray")),
    Equivalent("--intial-incremental-detokenization-offset=", NoEffect("texts are made from all tokens of an answer")),
    Equivalent("--enable-multimodal-encoder-data-parallel", _PICTURES),
)
