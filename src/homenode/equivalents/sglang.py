"""Flags of SGLang's server (0.5.23, and older ones that are still in use), and what they are here; those that vLLM has
by the same name are in its table."""

from __future__ import annotations

from homenode.equivalents.equivalent import AlwaysSo, Equivalent, ModelName, NoEffect, NotOffered, Taken

_ONE = {"1": AlwaysSo("there is one")}
_OFF = AlwaysSo("it is off")
_KERNELS = NoEffect("kernels are chosen by what the processor or the device can do (--isa, --attention-backend)")
_COMPILED = NoEffect("nothing is compiled at the start; --enforce-eager leaves out graphs of an accelerator")
_GPUS = NoEffect("it is of how GPUs exchange what they computed, which homenode does in its own way")
_PICTURES = NoEffect("images are prepared as the model's files say, sound and videos are not read (docs/pictures.md)")
_ADAPTERS = NotOffered("homenode serves no LoRA adapters: merge the adapter into the model and serve that")
_OF_ADAPTERS = NoEffect("homenode serves no LoRA adapters")
_SPECULATION = NoEffect("how much is drafted follows from what is measured, and answers are those without drafts")
_HOSTS = NotOffered("several hosts are one engine with --executor ray, or one server each behind a router")
_ENGINES = NotOffered("give --data-parallel-size, --tensor-parallel-size and --enable-expert-parallel")
_SCHEDULE = NoEffect("the scheduler decides it: see --step-time, --max-num-batched-tokens and docs/scheduling.md")
_PROMPTS = NoEffect("prompts share the time of a step, --step-time, the one with the least left first")
_TURNS = NoEffect("of prompts of one priority the one with the least left to compute goes first (docs/scheduling.md)")
_CACHES = NoEffect("the prefix cache is the KV memory itself (--kv-cache-memory, --enable-prefix-caching)")
_STORES = NoEffect("KV lies in main memory already; --kv-disk DIR keeps prefixes on disk too")
_OFFLOAD = NoEffect("weights and KV lie in main memory unless --stage-devices names accelerators for some layers")
_STATES = NoEffect("states of such layers are kept as the model needs (--state-snapshot-interval)")
_EXPERTS = NoEffect("--expert-counts keeps what experts are used, and --expert-placement FILE places by it")
_CPU_EXPERTS = NoEffect("experts are computed where the layer is that they are of: see --stage-devices")
_FIGURES = NoEffect("figures are under /metrics, and the log has a line every ten seconds while it is busy")
_LOG = NoEffect(
    "--log-requests and --log-outputs have a line for each prompt and answer, --access-log for each HTTP request"
)
_DEBUG = NoEffect("it is of finding faults in SGLang")
_LOADING = NoEffect("weights are mapped from their files and read ahead")
_FROM_OTHERS = NotOffered("weights are read from files: MODEL is a folder, a file or an id of the Hub")
_HAND_OVER = NoEffect("how KV is handed over is --transfer-channel and the settings with --pd- (docs/kv-transfer.md)")
_OUTPUTS = NoEffect("answers have no further outputs")
_TOKENS = NoEffect("each process of --api-server-count turns texts into tokens")
_GRAMMARS = NoEffect("grammars need no setting: see docs/structured-output.md")
_MARKS = NotOffered("no mark is put into texts")
_HTTP = NotOffered("homenode answers HTTP/1.1: --port; a reverse proxy speaks other protocols")
_BLOCK_MODELS = NotOffered("models that write blocks of tokens are not computed")

EQUIVALENTS: tuple[Equivalent, ...] = (
    # The model
    Equivalent("--model-path=", ModelName()),
    Equivalent("--context-length=", Taken("--max-model-len")),
    Equivalent("--is-embedding", Taken("--runner", "pooling")),
    Equivalent("--tokenizer-path=", Taken("--tokenizer")),
    Equivalent("--tokenizer-backend= --model-config-parser=", NoEffect("files tell what they are")),
    Equivalent("--tokenizer-worker-num= --detokenizer-worker-num=", Taken("--api-server-count"), values=_ONE),
    Equivalent("--hf-chat-template-name= --completion-template=", NotOffered("give --chat-template FILE")),
    Equivalent(
        "--json-model-override-args=", NotOffered("what a model is stands in its files: change config.json in a copy")
    ),
    Equivalent("--random-seed=", Taken("--seed")),
    Equivalent(
        "--quantization-param-path= --qsa-indexer-dtype= --modelopt-quant= --modelopt-checkpoint-restore-path= "
        "--modelopt-checkpoint-save-path= --modelopt-export-path= --quantize-and-serve --rl-quant-profile= "
        "--torchao-config=",
        NotOffered("to quantise while loading give --quantize q8_0 or q4_0; quantised files need no setting"),
    ),
    Equivalent(
        "--startup-weight-load-mode= --weight-loader-disable-mmap --weight-loader-prefetch-checkpoints "
        "--weight-loader-prefetch-num-threads= --weight-loader-drop-cache-after-load --weight-cache-mode= "
        "--weight-cache-socket= --weight-cache-timeout= --model-checksum= --delete-ckpt-after-loading",
        _LOADING,
    ),
    Equivalent(
        "--custom-weight-loader=... --remote-instance-weight-loader-seed-instance-ip= "
        "--remote-instance-weight-loader-seed-instance-service-port= "
        "--remote-instance-weight-loader-send-weights-group-ports=... --remote-instance-weight-loader-backend= "
        "--remote-instance-weight-loader-start-seed-via-transfer-engine --engine-info-bootstrap-port= "
        "--modelexpress-config= --decrypted-config-file= --decrypted-draft-config-file= "
        "--checkpoint-engine-wait-weights-before-ready",
        _FROM_OTHERS,
    ),
    # Workers and hosts
    Equivalent("--tp= --tp-size=", Taken("--tensor-parallel-size")),
    Equivalent("--pp= --pp-size=", Taken("--pipeline-parallel-size")),
    Equivalent("--dp= --dp-size=", Taken("--data-parallel-size")),
    Equivalent(
        "--ep= --ep-size= --expert-parallel-size=",
        Taken("--enable-expert-parallel", "on"),
        values={"1": AlwaysSo("each worker has a part of each expert")},
    ),
    Equivalent("--use-ray", Taken("--executor", "ray")),
    Equivalent(
        "--numa-node=...", NotOffered("give --numa-bind --numa-bind-nodes N..., or --numa local --numa-nodes N")
    ),
    Equivalent("--base-gpu-id= --gpu-id-step=", NotOffered("give --stage-devices, such as cuda:1")),
    Equivalent("--nccl-port= --dist-timeout= --dist-init-addr= --nccl-init-addr= --gated-launch-port=", _HOSTS),
    Equivalent(
        "--dcp-size= --attn-cp-size= --attention-context-parallel-size= --attn-dp-size= "
        "--attention-data-parallel-size= --moe-dp-size= --moe-data-parallel-size= --dwdp-size= --moe-dense-tp-size= "
        "--shared-experts-tp-size=",
        _ENGINES,
        values=_ONE,
    ),
    Equivalent(
        "--enable-dp-attention --enable-dp-lm-head --enable-tp-lm-head-all-to-all --enable-prefill-cp --cp-strategy= "
        "--enable-cp-tp-group-sharing --enable-dsa-cache-layer-split --enable-cp-decode-attn-tp "
        "--enable-kv-cache-sharding --enable-dp-attention-local-control-broadcast --enable-attn-tp-input-scattered "
        "--enable-shared-experts-attn-tp --enable-dense-mlp-attn-tp --enable-layernorm-sp "
        "--enable-megamoe-for-layernorm-sp --disable-attn-tp-gather --enable-p2p-check --dcp-replicate-q-proj "
        "--load-balance-method= --pp-max-micro-batch-size= --pp-async-batch-depth=",
        NoEffect("how layers are divided is --tensor-parallel-size, --pipeline-parallel-size, --data-parallel-size"),
    ),
    Equivalent(
        "--ep-join-rank-offset= --elastic-ep-join-rank-offset= --elastic-ep-initial-size= --max-ep-size= "
        "--elastic-ep-backend= --enable-elastic-expert-backup --ep-join-mode= --elastic-ep-join-mode= "
        "--elastic-ep-scale-timeout=",
        NotOffered("engines are as many as at the start: --data-parallel-size"),
    ),
    # Memory
    Equivalent(
        "--mem-fraction-static=",
        Taken("--gpu-memory-utilization", note="it is of accelerators; on CPUs --kv-cache-fraction says how much"),
    ),
    Equivalent("--max-total-tokens=", NotOffered("give the size of KV memory: --kv-cache-memory")),
    Equivalent(
        "--page-size=", Taken("--block-size"), values={"1": NoEffect("KV is given out in blocks: --block-size")}
    ),
    Equivalent("--disable-radix-cache", Taken("--enable-prefix-caching", "off")),
    Equivalent(
        "--radix-eviction-policy= --radix-eviction-policy-config= --enable-page-major-kv-layout "
        "--enable-unified-memory --enable-session-radix-cache --radix-cache-backend= --swa-full-tokens-ratio= "
        "--swa-prefix-tails= --disable-hybrid-swa-memory --c128-page-size= --disable-chunked-prefix-cache "
        "--prefill-only-disable-kv-cache --kv-canary= --kv-canary-real-data= --kv-canary-sweep-interval=",
        _CACHES,
    ),
    Equivalent(
        "--enable-hierarchical-cache --enable-hicache --hicache-host-memory-mode= --hicache-ratio= --hicache-size= "
        "--hicache-host-memory-fraction= --hicache-write-policy= --hicache-io-backend= --hicache-mem-layout= "
        "--hicache-storage-backend= --hicache-storage-prefetch-policy= --hicache-storage-backend-extra-config= "
        "--hicache-storage-prefetch-retry-poll-interval= --hicache-storage-prefetch-retry-max-attempts= "
        "--enable-unified-cache-external-linker --unified-cache-external-linker-backend= "
        "--unified-cache-external-linker-config= --enable-linker-mla-dedup --enable-hisparse --hisparse-config= "
        "--hierarchical-sparse-attention-extra-config= --enable-lmcache --lmcache-config-file= --enable-flexkv "
        "--flexkv-config-file=",
        _STORES,
    ),
    Equivalent(
        "--offload-mode= --ple-offload-embedding --ple-offload-backend= --ple-offload-dir= --enable-memory-saver "
        "--enable-weights-cpu-backup --enable-draft-weights-cpu-backup",
        _OFFLOAD,
    ),
    Equivalent(
        "--max-mamba-cache-size= --mamba-full-memory-ratio= --mamba-ssm-dtype= --mamba-max-states-per-path= "
        "--mamba-radix-cache-strategy= --uses-mamba-radix-cache --mamba-track-interval= "
        "--enable-int8-mamba-checkpoint --int8-mamba-ckpt-size= --enable-linear-replayssm "
        "--linear-replayssm-cache-len= --enable-linear-replayssm-spec",
        _STATES,
    ),
    # The scheduler
    Equivalent("--max-running-requests=", Taken("--max-num-seqs")),
    Equivalent("--max-queued-requests=", Taken("--max-num-queued-requests")),
    Equivalent(
        "--chunked-prefill-size=",
        Taken("--max-num-batched-tokens"),
        values={"-1": Taken("--enable-chunked-prefill", "off")},
    ),
    Equivalent(
        "--schedule-policy=",
        _TURNS,
        values={"lpm": AlwaysSo("what the prefix cache holds is not left to compute, and the least left goes first")},
    ),
    Equivalent(
        "--max-prefill-tokens= --prefill-max-requests= --enable-dynamic-chunking --enable-mixed-chunk", _PROMPTS
    ),
    Equivalent(
        "--enable-priority-scheduling --default-priority-value= --abort-on-priority-when-disabled",
        NoEffect("requests may say their priority, 0 if they do not, and lower values go first"),
    ),
    Equivalent("--schedule-low-priority-values-first", AlwaysSo("lower values of priority go first")),
    Equivalent(
        "--prefill-decode-interval= --prefill-decode-interval-min-bs= --disable-priority-preemption "
        "--priority-scheduling-preemption-threshold= --retraction-policy= --schedule-conservativeness= "
        "--num-continuous-decode-steps= --scheduler-recv-interval= --enable-prefill-delayer "
        "--prefill-delayer-max-delay-passes= --prefill-delayer-token-usage-low-watermark= "
        "--prefill-delayer-forward-passes-buckets=... --prefill-delayer-wait-seconds-buckets=... "
        "--prefill-delayer-queue-min-ratio= --prefill-delayer-max-delay-ms= --min-free-slots-delay= "
        "--disable-overlap-schedule --allow-auto-truncate",
        _SCHEDULE,
    ),
    # Prefill and decode apart
    Equivalent(
        "--disaggregation-mode=",
        NotOffered("give --pd-role sender (prefill) or receiver (decode)"),
        values={
            "null": AlwaysSo("KV is handed over when --pd-role is given"),
            "prefill": Taken("--pd-role", "sender"),
            "decode": Taken("--pd-role", "receiver"),
        },
    ),
    Equivalent(
        "--disaggregation-transfer-backend=",
        NotOffered("give --transfer-channel shm, tcp or nixl"),
        values={"nixl": Taken("--transfer-channel", "nixl")},
    ),
    Equivalent("--disaggregation-enable-kv-checksum", AlwaysSo("what is handed over is compared by sums and epochs")),
    Equivalent(
        "--disaggregation-bootstrap-port= --disaggregation-ib-device= --disaggregation-decode-enable-radix-cache "
        "--disaggregation-decode-enable-offload-kvcache --disaggregation-decode-retraction-backup= "
        "--num-reserved-decode-tokens= --disaggregation-decode-extra-slots= "
        "--disaggregation-decode-polling-interval= --disaggregation-decode-allocation-policy= "
        "--optimistic-prefill-attempts= --disaggregation-decode-host-receive-threshold= --mooncake-ib-device=",
        _HAND_OVER,
    ),
    Equivalent(
        "--enable-pd-role-switch --enable-pdmux --pdmux-config-path= --sm-group-num=",
        NotOffered("a server has one part: --pd-role sender or receiver"),
    ),
    # Pictures
    Equivalent(
        "--encoder-only --encoder-transfer-backend= --encoder-urls=... --encoder-bootstrap-port= "
        "--encoder-register-urls=... --enable-adaptive-dispatch-to-encoder --enable-multimodal "
        "--mm-attention-backend= --enable-broadcast-mm-inputs-process --enable-prefix-mm-cache "
        "--mm-enable-dp-encoder --mm-process-config= --mm-processor-worker-num= --mm-io-worker-num= "
        "--media-url-max-file-size-mb= --mm-preprocess-cache-size-mb= --trust-mm-content-hashes "
        "--limit-mm-data-per-request= --enable-mm-global-cache --image-processor-backend= "
        "--mm-global-cache-backend= --disable-fast-image-processor --mm-feature-transport= --asr-max-buffer-seconds= "
        "--asr-max-concurrent-sessions= --enable-encoder-swa-bounded-replay",
        _PICTURES,
    ),
    Equivalent("--language-only", AlwaysSo("homenode serves the text of such models")),
    # The server
    Equivalent("--fastapi-root-path=", Taken("--root-path")),
    Equivalent("--enable-response-store", AlwaysSo("responses are kept: --max-stored-responses")),
    Equivalent("--enable-http-worker-reuseport", AlwaysSo("processes of --api-server-count accept on one port")),
    Equivalent(
        "--smg-grpc-mode --grpc-mode --grpc-response-timeout-secs= --grpc-worker-threads= --enable-http2 "
        "--http2-max-concurrent-streams= --http2-initial-connection-window-size= --smg-http-sidecar-port= "
        "--grpc-http-sidecar-port= --sidecar= --sidecar-args=...",
        _HTTP,
    ),
    Equivalent("--skip-server-warmup", AlwaysSo("there is none")),
    Equivalent("--warmups=", NoEffect("there is none")),
    Equivalent("--ssl-keyfile-password=", NotOffered("give a key that is not encrypted: --ssl-keyfile")),
    Equivalent("--admin-api-key=", NotOffered("keys have names and limits in the file of --api-key-file")),
    Equivalent("--weight-version=", NoEffect("a model has names, --served-model-name")),
    Equivalent("--file-storage-path=", NoEffect("no files are kept")),
    Equivalent("--enable-cache-report", AlwaysSo("usage tells how much of a prompt was in the cache")),
    Equivalent("--return-input-ids --return-output-ids", NoEffect("requests ask for it: return_token_ids")),
    Equivalent("--strip-thinking-cache --enable-strict-thinking", NoEffect("templates decide what of thoughts stays")),
    Equivalent(
        "--sampling-defaults=",
        NotOffered("give --generation-config auto or none"),
        values={
            "model": Taken("--generation-config", "auto"),
            "openai": Taken("--generation-config", "none"),
        },
    ),
    Equivalent("--preferred-sampling-params=", NotOffered("requests say it, or generation_config.json of the model")),
    Equivalent("--stream-response-default-include-usage", NoEffect("requests ask for it: stream_options")),
    Equivalent(
        "--incremental-streaming-output --enable-streaming-session --batch-notify-size=",
        NoEffect("a stream has each token when it is there"),
    ),
    Equivalent(
        "--grammar-backend= --constrained-json-whitespace-pattern= --constrained-json-disable-any-whitespace "
        "--constrained-json-max-whitespace-cnt= --disable-outlines-disk-cache",
        _GRAMMARS,
    ),
    Equivalent(
        "--enable-dynamic-batch-tokenizer --dynamic-batch-tokenizer-batch-size= "
        "--dynamic-batch-tokenizer-batch-timeout= --enable-tokenizer-batch-encode --disable-tokenizer-batch-decode",
        _TOKENS,
    ),
    Equivalent("--watchdog-timeout=", Taken("--worker-timeout")),
    Equivalent("--soft-watchdog-timeout= --sleep-on-idle --gc-threshold=... --custom-sigquit-handler=", _DEBUG),
    # The log and figures
    Equivalent(
        "--log-level-http=",
        Taken("--access-log", "on", "it is a line for each HTTP request"),
        values={
            **dict.fromkeys("warning error critical".split(), AlwaysSo("there is none unless --access-log is given"))
        },
    ),
    Equivalent(
        "--log-requests-level= --log-requests-format= --log-requests-target=... "
        "--uvicorn-access-log-exclude-prefixes=... --crash-dump-folder= --show-time-cost "
        "--enable-request-time-stats-logging",
        _LOG,
    ),
    Equivalent("--enable-metrics --enable-metrics-for-all-schedulers", AlwaysSo("/metrics has the figures")),
    Equivalent(
        "--load-snapshot-publish-interval= --tokenizer-metrics-custom-labels-header= "
        "--tokenizer-metrics-allowed-custom-labels=... --extra-metric-labels= --bucket-time-to-first-token=... "
        "--bucket-inter-token-latency=... --bucket-e2e-request-latency=... --prompt-tokens-buckets=... "
        "--generation-tokens-buckets=... --gc-warning-threshold-secs= --decode-log-interval= "
        "--load-publish-endpoint= --enable-forward-pass-metrics --forward-pass-metrics-worker-id= "
        "--forward-pass-metrics-ipc-name= --enable-trace --trace-modules= --otlp-service-name= "
        "--export-metrics-to-file --export-metrics-to-file-dir= --stat-loggers=",
        _FIGURES,
    ),
    Equivalent(
        "--debug-tensor-dump-output-folder= --debug-tensor-dump-layers=... --debug-tensor-dump-input-file= "
        "--forward-hooks= --msprobe-dump-config= --debug-cuda-graph --spec-trace-dir=",
        _DEBUG,
    ),
    # Adapters, speculation, marks
    Equivalent("--lora-paths=...", _ADAPTERS),
    Equivalent(
        "--enable-lora-overlap-loading --max-loaded-loras= --max-loras-per-batch= --lora-eviction-policy= "
        "--lora-backend= --max-lora-chunk-size= --experts-shared-outer-loras --lora-use-virtual-experts "
        "--lora-strict-loading --lora-drain-wait-threshold= --uno-lora-path=",
        _OF_ADAPTERS,
    ),
    Equivalent(
        "--speculative-algorithm=",
        NotOffered("give --speculative ngram, draft or mtp"),
        values={
            "ngram": Taken("--speculative", "ngram"),
            "standalone": Taken("--speculative", "draft"),
            "nextn": Taken("--speculative", "mtp"),
        },
    ),
    Equivalent("--speculative-draft-model-path= --speculative-draft-model=", Taken("--speculative-model")),
    Equivalent("--speculative-num-draft-tokens=", Taken("--num-speculative-tokens")),
    Equivalent(
        "--speculative-boundary-reduction= --speculative-draft-model-revision= --speculative-draft-load-format= "
        "--speculative-num-steps= --speculative-eagle-topk= "
        "--speculative-dflash-block-size= --speculative-domino-candidate-pool-size= "
        "--speculative-dspark-block-size= --speculative-dspark-sps-table-path= "
        "--speculative-dspark-confidence-sts-path= --speculative-dspark-align-verify-tokens-to-graph-tier "
        "--speculative-accept-threshold-single= --speculative-accept-threshold-acc= "
        "--speculative-use-rejection-sampling --speculative-use-block-verification --speculative-token-map= "
        "--speculative-attention-mode= --speculative-draft-attention-backend= --speculative-dsa-topk-backend= "
        "--speculative-draft-kv-cache-dtype= --speculative-draft-window-size= --speculative-draft-sink-size= "
        "--speculative-moe-runner-backend= --speculative-moe-a2a-backend= --speculative-enable-w4a4-mxfp4-megamoe "
        "--speculative-draft-model-quantization= --enable-multi-layer-eagle --speculative-adaptive "
        "--speculative-adaptive-config= --speculative-ngram-min-bfs-breadth= --speculative-ngram-max-bfs-breadth= "
        "--speculative-ngram-match-type= --speculative-ngram-max-trie-depth= --speculative-ngram-capacity= "
        "--speculative-ngram-external-corpus-path= --speculative-ngram-external-sam-budget= "
        "--speculative-ngram-external-corpus-max-tokens= --decoupled-spec-bind-endpoint= "
        "--decoupled-spec-connect-endpoints=... --decoupled-spec-rank= --decoupled-spec-role=",
        _SPECULATION,
    ),
    Equivalent(
        "--enable-watermark --watermark-key= --watermark-key-b= --watermark-context-window= "
        "--watermark-mixing-probability= --watermark-max-probability= --watermark-default-enabled "
        "--watermark-enforce-all",
        _MARKS,
    ),
    Equivalent("--dllm-algorithm= --dllm-algorithm-config= --dllm-fdfo", _BLOCK_MODELS),
    # Kernels and graphs
    Equivalent(
        "--enable-deterministic-inference", AlwaysSo("a request's tokens do not depend on what else is computed")
    ),
    Equivalent("--rl-on-policy-target=", NoEffect("a request's tokens do not depend on what else is computed")),
    Equivalent("--disable-cuda-graph --disable-decode-cuda-graph", Taken("--enforce-eager")),
    Equivalent(
        "--cuda-graph-config= --cuda-graph-backend-decode= --cuda-graph-backend-prefill= --cuda-graph-max-bs= "
        "--cuda-graph-bs=... --cuda-graph-max-bs-decode= --cuda-graph-max-bs-prefill= "
        "--cuda-graph-max-seq-len-prefill= --cuda-graph-bs-decode=... --cuda-graph-bs-prefill=... "
        "--cuda-graph-prefill-max-context= --context-bucket= --disable-prefill-cuda-graph "
        "--disable-cuda-graph-padding --enable-profile-cuda-graph --enable-cudagraph-gc --enable-torch-compile "
        "--enable-torch-compile-debug-mode --torch-compile-max-bs= --enable-layerwise-nvtx-marker",
        _COMPILED,
    ),
    Equivalent(
        "--enable-fp32-lm-head --enable-tf32-matmul --decode-attention-backend= --enable-lean-attention "
        "--enable-nvidia-megakernel --enable-amd-monokernel --prefill-attention-backend= "
        "--prefill-kv-cache-dequant-dtype= --sampling-backend= --fp8-gemm-runner-backend= --fp8-gemm-backend= "
        "--fp4-gemm-runner-backend= --fp4-gemm-backend= --bf16-gemm-backend= --dsa-prefill-backend= "
        "--dsv4-prefill-backend= --dsa-triton-union= --dsa-decode-backend= --dsv4-attn-backend= "
        "--dsa-paged-mqa-logits-backend= --dsa-topk-backend= --disable-flashinfer-autotune "
        "--flashinfer-autotune-skip-ops=... --triton-attention-reduce-in-fp32 --triton-attention-num-kv-splits= "
        "--triton-attention-split-tile-size= --flashinfer-mla-disable-ragged --enable-fused-qk-norm-rope "
        "--enable-precise-embedding-interpolation --enable-deepseek-v4-fp4-indexer --enable-dsa-fused-indexer "
        "--linear-attn-backend= --linear-attn-decode-backend= --linear-attn-prefill-backend= "
        "--linear-attn-verify-backend= --enable-decoder-swa-bounded-replay --mlx-enable-sampling --enable-mis",
        _KERNELS,
    ),
    Equivalent(
        "--enable-nccl-nvls --enable-symm-mem --enable-mscclpp --enable-torch-symm-mem --enable-scattered-sconv "
        "--pre-warm-nccl --boundary-reduction= --enable-quant-communications --enable-flashinfer-allreduce-fusion "
        "--enforce-disable-flashinfer-allreduce-fusion --flashinfer-allreduce-fusion-backend= "
        "--enable-aiter-allreduce-fusion --disable-aiter-allreduce-fusion-in-prefill "
        "--disable-aiter-allreduce-fusion-in-decode --enable-fused-moe-sum-all-reduce --moe-a2a-backend= "
        "--enable-w4a4-mxfp4-megamoe --deepep-v2-mode= --moe-runner-backend= --flashinfer-mxfp4-moe-precision= "
        "--deepep-mode= --fuseep-mode= --deepep-dispatcher-output-dtype= --flashinfer-a2a-dispatch-type= "
        "--deepep-config= --enable-waterfill --disable-flashinfer-cutlass-moe-fp4-allgather "
        "--disable-shared-experts-fusion --enforce-shared-experts-fusion --enable-two-batch-overlap "
        "--enable-single-batch-overlap --tbo-token-distribution-threshold=",
        _GPUS,
    ),
    # Experts
    Equivalent(
        "--ep-num-redundant-experts= --ep-dispatch-algorithm= --init-expert-location= --eplb-algorithm= "
        "--eplb-rebalance-num-iterations= --eplb-rebalance-layers-per-chunk= "
        "--eplb-min-rebalancing-utilization-threshold= --expert-distribution-recorder-mode= "
        "--expert-distribution-recorder-buffer-size= --expert-balancedness-report-mode=",
        _EXPERTS,
    ),
    Equivalent(
        "--enable-paged-experts --paged-experts-num-resident= --kt-weight-path= --kt-method= --kt-cpuinfer= "
        "--kt-threadpool-count= --kt-num-gpu-experts= --kt-max-deferred-experts-per-token=",
        _CPU_EXPERTS,
    ),
    # Outputs
    Equivalent("--enable-custom-logit-processor", NotOffered("no code of others is loaded into the server")),
    Equivalent(
        "--enable-return-hidden-states --return-hidden-states-mode= --enable-return-aux-hidden-states "
        "--aux-hidden-state-capture= --return-aux-hidden-state-layer-ids=... --enable-return-indexer-topk "
        "--sampling-mask-max-tokens=",
        _OUTPUTS,
    ),
)
