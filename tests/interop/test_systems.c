/* Options of Megatron-LM become jobs; jobs become options of Megatron-LM and torchtitan; what they
 * cannot express is reported. */
#include "support.h"

#include <string.h>

#include "base/memory.h"
#include "job/read_back.h"
#include "models/family.h"
#include "plan/plan.h"
#include "search/degrees.h"
#include "weft/job.h"

/* A job from options, with everything that one case may look at. */
typedef struct imported {
    char *yaml, *notes;
    weft_job *job;
    wefti_degrees degrees;
} imported;

static void end(imported *i) {
    weft_text_free(i->yaml);
    weft_text_free(i->notes);
    weft_job_free(i->job);
}

static weft_status import(const char *options, int devices, imported *out) {
    wefti_text notes = {0};
    *out = (imported){0};
    WEFT_TRY(weft_job_import("run.sh", options, (int64_t)strlen(options), NULL, devices, &out->yaml,
                             &out->notes));
    ASSERT_OK(read_back(out->yaml, &out->job));
    if (!out->job->plan) {
        out->degrees = wefti_degrees_none();
        return WEFT_OK;
    }
    ASSERT_OK(wefti_degrees_of_plan(out->job->plan, &out->degrees, &notes));
    assert_int_equal(notes.used, 0);
    return WEFT_OK;
}

#define SMALL "--num-layers 8 --hidden-size 64 --num-attention-heads 8 --seq-length 32 "
#define GPT SMALL "--vocab-size 1000 --make-vocab-size-divisible-by 1 "
#define LLAMA                                                                                      \
    GPT "--normalization RMSNorm --swiglu --position-embedding-type rope --disable-bias-linear "   \
        "--untie-embeddings-and-output-weights "

#define EXPERTS "--num-experts 4 --moe-router-topk 2 --moe-ffn-hidden-size 32 "

static void a_script_becomes_a_job(void **state) {
    (void)state;
    imported i;
    ASSERT_OK(
        import("#!/bin/bash\n# 8 x 8\nTP=2; PP='2'\nexport NNODES=${NNODES:-4}\n"
               "torchrun --nproc_per_node 4 --nnodes=$NNODES pretrain.py \\\n"
               " --tensor-model-parallel-size $TP --pipeline-model-parallel-size \"${PP}\" \\\n"
               " --num-layers-per-virtual-pipeline-stage 2 --sequence-parallel " GPT
               " --save $UNSET/x --micro-batch-size 2 --global-batch-size 32 --bf16\n"
               " --use-distributed-optimizer --recompute-granularity full # all\n"
               " --recompute-method uniform --recompute-num-layers 1 --lr 1e-3 --min-lr 1e-4",
               0, &i));
    assert_string_equal(strchr(i.notes, ':'), ": --save\n");
    assert_int_equal(i.job->model.family, WEFT_FAMILY_GPT2);
    assert_int_equal(i.job->model.layers, 8);
    assert_int_equal(i.job->model.ffn, 256);
    assert_int_equal(i.job->model.vocab, 1000);
    assert_int_equal(i.job->train.batch, 32);
    assert_int_equal(i.job->train.precision, WEFT_BF16);
    assert_int_equal(weft_plan_devices(i.job->plan), 16);
    assert_int_equal(i.degrees.tensor, 2);
    assert_true(i.degrees.sequence);
    assert_int_equal(i.degrees.stages, 2);
    assert_int_equal(i.degrees.chunks, 2);
    assert_int_equal(i.degrees.schedule, WEFT_PIPELINE_INTERLEAVED);
    assert_int_equal(i.degrees.data, 4);
    assert_int_equal(i.degrees.microbatches, 4);
    assert_int_equal(i.degrees.level, 1);
    assert_int_equal(i.degrees.recompute, WEFT_RECOMPUTE_FULL);
    assert_true(i.job->train.schedule.final > 0.0999 && i.job->train.schedule.final < 0.1001);
    end(&i);
}

static void families_follow_the_block(void **state) {
    (void)state;
    static const struct {
        const char *options;
        weft_family family;
        int64_t kv_heads, ffn;
    } cases[] = {
        {GPT, WEFT_FAMILY_GPT2, 0, 256},
        {GPT "--num-experts 4 --moe-router-topk 1", WEFT_FAMILY_GPT2_MOE, 0, 256},
        {LLAMA, WEFT_FAMILY_LLAMA, 8, 128},
        {LLAMA "--group-query-attention --num-query-groups 2 --ffn-hidden-size 96",
         WEFT_FAMILY_LLAMA, 2, 96},
        {LLAMA "--window-size 7,0", WEFT_FAMILY_MISTRAL, 8, 128},
        {LLAMA "--add-qkv-bias --window-size -1,0", WEFT_FAMILY_QWEN2, 8, 128},
        {LLAMA "--qk-layernorm --kv-channels 16", WEFT_FAMILY_QWEN3, 8, 128},
        {LLAMA "--num-experts 8 --moe-ffn-hidden-size 48", WEFT_FAMILY_MIXTRAL, 8, 48},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        imported i;
        ASSERT_OK(import(cases[k].options, 0, &i));
        assert_int_equal(i.job->model.family, cases[k].family);
        assert_int_equal(i.job->model.kv_heads, cases[k].kv_heads);
        assert_int_equal(i.job->model.ffn, cases[k].ffn);
        /* Megatron-LM's defaults, also where the family has others */
        assert_true(i.job->model.norm_eps == 1e-5);
        if (cases[k].kv_heads) assert_true(i.job->model.rope_theta == 10000);
        end(&i);
    }
}

static void what_has_no_counterpart_is_noted(void **state) {
    (void)state;
    static const struct {
        const char *options, *note;
    } cases[] = {
        {GPT "--frobnicate 3", "--frobnicate"},
        {GPT "--fp16", "--fp16"},
        {SMALL, "model.vocab=N"},
        {GPT "--wandb-project x --save y --wandb-project z", ": --wandb-project, --save\n"},
        {LLAMA "--normalization LayerNorm --apply-layernorm-1p", "--apply-layernorm-1p"},
        {GPT "--disable-bias-linear", "--disable-bias-linear"},
        {GPT "--recompute-granularity full --recompute-method block --recompute-num-layers 2",
         "--recompute-method"},
        {GPT "--window-size 8", "--window-size"},
        {GPT "--attention-dropout 0.1 --hidden-dropout 0.2", "--attention-dropout"},
        {GPT "--tensor-model-parallel-size 2", "--devices"},
        {LLAMA EXPERTS "--tensor-model-parallel-size 2", "--expert-tensor-parallel-size 2"},
        {LLAMA EXPERTS "--tensor-model-parallel-size 4 --expert-tensor-parallel-size 1",
         "--expert-tensor-parallel-size 1"},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        imported i;
        ASSERT_OK(import(cases[k].options, 0, &i));
        if (!strstr(i.notes, cases[k].note))
            fail_msg("%s: no note of %s in '%s'", cases[k].options, cases[k].note, i.notes);
        end(&i);
    }
}

/* Scripts in the form of Megatron-LM's own examples: words in arrays, defaults, arithmetic, options
 * in quotes, conditions. */
static void launch_scripts_are_read(void **state) {
    (void)state;
    static const char model[] = "--num-layers 8 --hidden-size 64 --num-attention-heads 8 "
                                "--seq-length 32 --make-vocab-size-divisible-by 1 --swiglu "
                                "--position-embedding-type rope --normalization RMSNorm "
                                "--disable-bias-linear ";
    static const struct {
        const char *script;
        int tensor, devices;
        int64_t vocab;
        const char *note; /* NULL: none but of what is not taken over */
    } cases[] = {
        /* arrays with comments, defaults with quotes, a sum, a file in the way */
        {"export A=${A:-1}\nN=${SLURM_NNODES:-\"2\"} # hosts\nPER=4\nWORLD=$(($PER*$N))\n"
         "mkdir -p \"$(dirname \"$1\")\"\n"
         "DIST=(\n  --nproc_per_node $PER\n  --nnodes $N\n)\n"
         "ARGS=(\n  --tensor-model-parallel-size ${TP:-${WORLD}}\n # --tensor-model-parallel-size "
         "2\n"
         "  --vocab-size 1000\n  --data-path $DATA\n)\n"
         "if [ ! -f \"x.py\" ]; then\n echo \"--vocab-size 7\"; exit 1\nfi\n"
         "torchrun ${DIST[@]} \\\n \"x.py\" \\\n ${ARGS[@]} $MODEL\n",
         8, 8, 1000, "line 16"},
        /* pairs in quotes, appended by a condition; another branch */
        {"T=\"fp8\"; D=()\nif [[ \"$T\" == \"fp8\" ]]; then\n D+=(\n  \"--vocab-size 500\"\n  "
         "\"--split '99,1,0'\"\n )\nelse\n D+=(\"--vocab-size 7\")\nfi\n"
         "O=(--tensor-model-parallel-size 2)\nO+=(\"${D[@]}\")\n"
         "if [ -n \"${WANDB_API_KEY}\" ]; then O+=(--vocab-size 9); fi\n"
         "python x.py ${O[@]} $MODEL 2>&1 | tee log.txt",
         2, 2, 500, "--devices"},
        /* a text of options, a case, && and || */
        {"SCALE=\"8B\"\ncase \"${SCALE}\" in\n \"1B\") TP=1 ;;\n \"8B\" | 9B)\n  TP=4\n  V=600\n  "
         ";;\n"
         " *) TP=8; exit 1 ;;\nesac\n"
         "options=\" \\\n  --tensor-model-parallel-size ${TP} \\\n  --vocab-size ${V} \\\n\"\n"
         "[ \"$TP\" = 4 ] && options+=\" --vocab-size $((V + (2 * 50)))\"\n"
         "[ \"$TP\" -gt 4 ] && options+=\" --vocab-size 1\"\n"
         "cd x && torchrun --nproc_per_node 8 x.py ${options} $MODEL || echo failed\n",
         4, 8, 700, NULL},
        /* only variables: another script reads them */
        {"MODEL_ARGS=\"--tensor-model-parallel-size 2 --vocab-size 900 $MODEL\"\n"
         "GPUS=(--nproc-per-node 2)\n",
         2, 2, 900, NULL},
        /* the size of a known tokenizer */
        {"torchrun --nproc-per-node 2 x.py --tensor-model-parallel-size 2 --tokenizer-type "
         "Llama2Tokenizer $MODEL",
         2, 2, 32000, NULL},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        char text[2000];
        imported i;
        (void)snprintf(text, sizeof text, "MODEL='%s'; %s", model, cases[k].script);
        if (import(text, 0, &i) < 0) fail_msg("%s: %s", text, weft_error_message());
        assert_int_equal(i.degrees.tensor, cases[k].tensor);
        assert_int_equal(weft_plan_devices(i.job->plan), cases[k].devices);
        assert_int_equal(i.job->model.vocab, cases[k].vocab);
        if (cases[k].note ? !strstr(i.notes, cases[k].note)
                          : strchr(i.notes, '\n') != strrchr(i.notes, '\n'))
            fail_msg("script %d: notes '%s'", (int)k, i.notes);
        end(&i);
    }
}

static void contradictions_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *options, *fact;
        weft_status status;
        int devices;
    } cases[] = {
        {"", "--num-layers", WEFT_E_ARG, 0},
        {"--num-layers 8 --hidden-size 64 --seq-length 3", "--num-attention-heads", WEFT_E_ARG, 0},
        {GPT "--swiglu", "RMSNorm", WEFT_E_NO_IMPL, 0},
        {GPT "--qk-layernorm", "--qk-layernorm", WEFT_E_NO_IMPL, 0},
        {LLAMA "--qk-layernorm --num-experts 8", "mixtral", WEFT_E_NO_IMPL, 0},
        {LLAMA "--qk-layernorm --add-qkv-bias", "qwen3", WEFT_E_NO_IMPL, 0},
        {GPT "--num-layers x", "run.sh:1", WEFT_E_ARG, 0},
        {GPT "\n--num-layers 1000000000", "run.sh:2", WEFT_E_ARG, 0},
        {GPT "\n--num-layers -3", "run.sh:2", WEFT_E_ARG, 0},
        {GPT "--lr nan", "--lr", WEFT_E_ARG, 0},
        {GPT "--hidden-size", "no value", WEFT_E_ARG, 0},
        {GPT "--tensor-model-parallel-size $TP", "$TP", WEFT_E_ARG, 0},
        {GPT "--tensor-model-parallel-size $(nproc)", "$(nproc)", WEFT_E_ARG, 0},
        {"A=(--num-layers $N)\ntorchrun ${A[@]}", "run.sh:1", WEFT_E_ARG, 0},
        {GPT "A=(\"--lr $LR\")\ntorchrun ${A[@]}", "--lr needs $LR", WEFT_E_ARG, 0},
        {"torchrun examples/pretrain_t5.py " GPT, "pretrain_t5.py", WEFT_E_NO_IMPL, 0},
        {"torchrun pretrain_bert.py " GPT, "pretrain_bert.py", WEFT_E_NO_IMPL, 0},
        {GPT "--tensor-model-parallel-size 3", "tp 3", WEFT_E_ARG, 8},
        {GPT "--tensor-model-parallel-size 16", "8 heads", WEFT_E_ARG, 16},
        {GPT "--context-parallel-size 2 --expert-model-parallel-size 4", "ep", WEFT_E_ARG, 8},
        {LLAMA "--num-experts 8 --expert-model-parallel-size 3", "3", WEFT_E_ARG, 8},
        {GPT "--micro-batch-size 4 --global-batch-size 10", "10", WEFT_E_ARG, 0},
        {GPT "--pipeline-model-parallel-size 16", "16", WEFT_E_ARG, 0},
        {GPT "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 3", "3",
         WEFT_E_ARG, 0},
        {GPT "--pipeline-model-parallel-size 16384 --num-layers-per-virtual-pipeline-stage "
             "1125899906842624",
         "16384", WEFT_E_ARG, 0},
        {GPT "--pipeline-model-parallel-size 16384 --num-virtual-stages-per-pipeline-rank "
             "1125899906842624",
         "16384", WEFT_E_ARG, 0},
        {GPT "--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout 'Et*3|t*4L'",
         "8 layers", WEFT_E_ARG, 0},
        {GPT "--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout 'Et*3|t*3|t*2L'",
         "3", WEFT_E_ARG, 0},
        {GPT "--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout 't*999999999999|L'",
         "layout", WEFT_E_ARG, 0},
        {GPT "--optimizer shampoo", "shampoo", WEFT_E_NO_IMPL, 0},
        {GPT "--use-distributed-optimizer --num-distributed-optimizer-instances 3",
         "--num-distributed-optimizer-instances 3", WEFT_E_ARG, 8},
        {LLAMA "--window-size all", "all", WEFT_E_ARG, 0},
        {GPT "--recompute-granularity most", "most", WEFT_E_ARG, 0},
        {GPT "--use-torch-fsdp2 --data-parallel-sharding-strategy all", "all", WEFT_E_ARG, 0},
        {GPT "--tensor-model-parallel-size 1125899906842624", "1048576", WEFT_E_ARG, 0},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        char *yaml = NULL, *notes = NULL;
        const weft_status status =
            weft_job_import("run.sh", cases[k].options, (int64_t)strlen(cases[k].options), NULL,
                            cases[k].devices, &yaml, &notes);
        if (status != cases[k].status || !strstr(weft_error_message(), cases[k].fact))
            fail_msg("%s: status %d, '%s' has no '%s'", cases[k].options, status,
                     weft_error_message(), cases[k].fact);
        assert_null(yaml);
        assert_null(notes);
    }
}

/* Options -> job -> options -> job -> options: both plans are equal, and so are both lists of
 * options. */
static void options_survive_a_round_trip(void **state) {
    (void)state;
    static const struct {
        const char *options;
        int devices;
    } cases[] = {
        {GPT "--tensor-model-parallel-size 2 --sequence-parallel --micro-batch-size 2", 8},
        {GPT "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 2 "
             "--global-batch-size 16 --recompute-activations",
         4},
        {LLAMA "--tensor-model-parallel-size 2 --context-parallel-size 2 --bf16 "
               "--use-distributed-optimizer --group-query-attention --num-query-groups 4",
         8},
        {LLAMA "--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params", 4},
        {LLAMA EXPERTS
         "--expert-model-parallel-size 2 --tensor-model-parallel-size 2 --sequence-parallel",
         8},
        {LLAMA EXPERTS
         "--expert-model-parallel-size 4 --tensor-model-parallel-size 2 --sequence-parallel "
         "--expert-tensor-parallel-size 1",
         4},
        {LLAMA "--qk-layernorm --kv-channels 16 --window-size 8 --norm-epsilon 1e-6", 4},
        {GPT
         "--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout 'Et|tt|(t*2|)*1t*3L' "
         "--global-batch-size 16",
         4},
        {LLAMA
         "--pipeline-model-parallel-size 4 --pipeline-model-parallel-layout 'Et*3|,t*2|t|tt,L' "
         "--global-batch-size 16",
         4},
        {GPT "--optimizer sgd --sgd-momentum 0.9 --lr 0.1 --lr-decay-style constant", 1},
        {LLAMA "--use-distributed-optimizer --num-distributed-optimizer-instances 2 "
               "--tensor-model-parallel-size 2",
         8},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        imported a, b;
        char *options, *again, *notes;
        ASSERT_OK(import(cases[k].options, cases[k].devices, &a));
        ASSERT_OK(weft_job_export(a.job, WEFT_SYSTEM_MEGATRON, &options, &notes));
        if (*notes) fail_msg("%s: %s", cases[k].options, notes);
        weft_text_free(notes);
        ASSERT_OK(import(options, cases[k].devices, &b));
        assert_string_equal(b.notes, "");
        assert_memory_equal(&a.degrees, &b.degrees, sizeof a.degrees);
        assert_string_equal(strstr(a.job->text, "parallel:"), strstr(b.job->text, "parallel:"));
        ASSERT_OK(weft_job_export(b.job, WEFT_SYSTEM_MEGATRON, &again, &notes));
        assert_string_equal(options, again);
        weft_text_free(options);
        weft_text_free(again);
        weft_text_free(notes);
        end(&a);
        end(&b);
    }
}

/* With a size of 1 for tensors of experts, Megatron-LM's 4 ranks of experts are ep and tp. */
static void experts_have_a_mesh_of_ep_and_tp(void **state) {
    (void)state;
    imported i;
    char *options, *notes;
    ASSERT_OK(import(LLAMA EXPERTS "--expert-model-parallel-size 4 --tensor-model-parallel-size 2 "
                                   "--expert-tensor-parallel-size 1",
                     4, &i));
    assert_null(strstr(i.notes, "expert"));
    assert_int_equal(i.degrees.expert, 2);
    assert_int_equal(i.degrees.data, 1);
    ASSERT_OK(weft_job_export(i.job, WEFT_SYSTEM_MEGATRON, &options, &notes));
    assert_non_null(strstr(options, "--expert-model-parallel-size 4\n"));
    assert_non_null(strstr(options, "--expert-tensor-parallel-size 1\n"));
    weft_text_free(options);
    weft_text_free(notes);
    end(&i);
}

static void torchtitan_gets_what_it_can_express(void **state) {
    (void)state;
    imported i;
    char *options, *notes;
    ASSERT_OK(import(LLAMA "--tensor-model-parallel-size 2 --sequence-parallel --use-megatron-fsdp "
                           "--recompute-granularity full --global-batch-size 16",
                     8, &i));
    ASSERT_OK(weft_job_export(i.job, WEFT_SYSTEM_TORCHTITAN, &options, &notes));
    static const char *const lines[] = {"data_parallel_shard_degree=4,\n",
                                        "tensor_parallel_degree=2,\n",
                                        "activation_checkpoint = FullAC.Config()\n",
                                        "global_batch_size=16,\n",
                                        "seq_len=32,\n",
                                        "torchtitan 0.3.0"};
    for (size_t k = 0; k < sizeof lines / sizeof *lines; k++)
        if (!strstr(options, lines[k])) fail_msg("no '%s' in\n%s", lines[k], options);
    assert_non_null(strstr(notes, "8 layers")); /* sizes are a flavor's there */
    weft_text_free(options);
    weft_text_free(notes);
    end(&i);
    ASSERT_OK(import(LLAMA "--use-megatron-fsdp --num-distributed-optimizer-instances 2", 8, &i));
    ASSERT_OK(weft_job_export(i.job, WEFT_SYSTEM_TORCHTITAN, &options, &notes));
    assert_non_null(strstr(options, "data_parallel_replicate_degree=2,\n"));
    assert_non_null(strstr(options, "data_parallel_shard_degree=4,\n"));
    weft_text_free(options);
    weft_text_free(notes);
    end(&i);
    ASSERT_OK(import(LLAMA "--qk-layernorm --bf16 --fp8-format hybrid", 2, &i));
    assert_int_equal(i.job->train.products, WEFT_PRODUCTS_F8);
    ASSERT_OK(weft_job_export(i.job, WEFT_SYSTEM_TORCHTITAN, &options, &notes));
    assert_non_null(strstr(options, "models.qwen3 import"));
    assert_non_null(strstr(notes, "train.products"));
    weft_text_free(options);
    weft_text_free(notes);
    ASSERT_OK(weft_job_export(i.job, WEFT_SYSTEM_MEGATRON, &options, &notes));
    assert_non_null(strstr(options, "--fp8-format hybrid\n"));
    assert_null(strstr(notes, "train.products"));
    weft_text_free(options);
    weft_text_free(notes);
    end(&i);
    ASSERT_OK(import(GPT, 2, &i));
    ASSERT_FAILS(WEFT_E_NO_IMPL, "gpt2",
                 weft_job_export(i.job, WEFT_SYSTEM_TORCHTITAN, &options, &notes));
    end(&i);
}

/* A plan that degrees cannot say: each difference is a note. */
static void other_plans_are_noted(void **state) {
    (void)state;
    static const struct {
        const char *override, *note, *family;
        weft_system system;
    } cases[] = {
        {"train.batch=3", "train.batch", "gpt2", WEFT_SYSTEM_MEGATRON},
        {"train.batch=3", "train.batch", "llama", WEFT_SYSTEM_TORCHTITAN},
        {"parallel.strategies=[{match: \"h.0.mlp.c_fc:linear\", split: n0=tp}]", "h.0.mlp.c_fc",
         "gpt2", WEFT_SYSTEM_MEGATRON},
        {"parallel.mesh={dp: 2, x: 2}", "x", "gpt2", WEFT_SYSTEM_MEGATRON},
        {"parallel.optimizer.threshold=1000", "threshold", "gpt2", WEFT_SYSTEM_MEGATRON},
        {"parallel.fusion.allreduce.mode=none", "fusion", "gpt2", WEFT_SYSTEM_MEGATRON},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        char family[40];
        (void)snprintf(family, sizeof family, "model.family=%s", cases[k].family);
        const char *overrides[] = {family,
                                   "model.layers=2",
                                   "model.hidden=16",
                                   "model.heads=2",
                                   "model.context=8",
                                   "model.vocab=32",
                                   "parallel.devices=4",
                                   "parallel.mesh={dp: 2, tp: 2}",
                                   cases[k].override};
        weft_job *job;
        char *options, *notes;
        ASSERT_OK(weft_job_load(NULL, overrides, 9, &job));
        ASSERT_OK(weft_job_export(job, cases[k].system, &options, &notes));
        if (!strstr(notes, cases[k].note))
            fail_msg("%s: no note of %s in '%s'", cases[k].override, cases[k].note, notes);
        weft_text_free(options);
        weft_text_free(notes);
        weft_job_free(job);
    }
}

/* Each family of language models: its options mean it again, or a message says what is missing. */
static void families_are_written(void **state) {
    (void)state;
    for (int f = 0; f < (int)WEFT_FAMILIES; f++) {
        const weft_family family = (weft_family)f;
        char name[64], *options, *notes;
        (void)snprintf(name, sizeof name, "model.family=%s", weft_family_text(family));
        const char *words[] = {name,
                               "model.layers=2",
                               "model.hidden=16",
                               "model.heads=2",
                               "model.context=8",
                               "model.vocab=32",
                               "data.path=x",
                               "parallel.devices=2"};
        weft_job *job;
        if (!weft_family_is_language(family)) continue;
        ASSERT_OK(weft_job_load(NULL, words, sizeof words / sizeof *words, &job));
        if (wefti_family_style_of(family) == WEFTI_STYLE_BERT ||
            wefti_family_has(family, WEFTI_POST_NORMS)) {
            ASSERT_FAILS(WEFT_E_NO_IMPL, weft_family_text(family),
                         weft_job_export(job, WEFT_SYSTEM_MEGATRON, &options, &notes));
        } else {
            imported i;
            ASSERT_OK(weft_job_export(job, WEFT_SYSTEM_MEGATRON, &options, &notes));
            if (*notes) fail_msg("%s: %s", name, notes);
            ASSERT_OK(import(options, 2, &i));
            const weft_family back =
                family == WEFT_FAMILY_MISTRAL ? WEFT_FAMILY_LLAMA : family; /* the same block */
            if (i.job->model.family != back)
                fail_msg("%s comes back as %s", name, weft_family_text(i.job->model.family));
            weft_text_free(options);
            weft_text_free(notes);
            end(&i);
        }
        weft_job_free(job);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_script_becomes_a_job),
                                       cmocka_unit_test(families_are_written),
                                       cmocka_unit_test(families_follow_the_block),
                                       cmocka_unit_test(what_has_no_counterpart_is_noted),
                                       cmocka_unit_test(launch_scripts_are_read),
                                       cmocka_unit_test(contradictions_are_refused),
                                       cmocka_unit_test(options_survive_a_round_trip),
                                       cmocka_unit_test(experts_have_a_mesh_of_ep_and_tp),
                                       cmocka_unit_test(torchtitan_gets_what_it_can_express),
                                       cmocka_unit_test(other_plans_are_noted)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
