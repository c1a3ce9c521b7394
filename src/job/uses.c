/* Refuses keys without effect. Some keys matter only for certain families of models, formats of
 * data, optimizers or schedules. Ignoring such a key would hide a mistake. See job/job.h. */
#include "job/job.h"

#include <stdio.h>
#include <string.h>

#include "models/family.h"

#define FORMAT(name) (1u << WEFT_FORMAT_##name)
#define RULE(name) (1u << WEFT_##name)
#define SCHEDULE(name) (1u << WEFT_SCHEDULE_##name)
enum {
    WINDOWED = WEFTI_FAMILIES_WITH(WEFTI_WINDOW),
    ROTARY = WEFTI_FAMILIES_WITH(WEFTI_ROTARY),
    EXPERTS = WEFTI_FAMILIES_WITH(WEFTI_EXPERTS),
    LANGUAGE = WEFTI_FAMILIES_WITH(WEFTI_LANGUAGE),
    BLOCKS = WEFTI_FAMILIES_WITH(WEFTI_HEADS),
    LAYERED = WEFTI_FAMILIES_WITH(WEFTI_LAYERS),
    IMAGES = ((1u << WEFT_FAMILIES) - 1) & ~(unsigned)LANGUAGE,
    LABELLED = FORMAT(IDX) | FORMAT(NPY),
    WRITTEN_AS_TEXT = FORMAT(TEXT) | FORMAT(JSONL) | FORMAT(RAW),
    TWO_MOMENTS = RULE(ADAM) | RULE(ADAMW) | RULE(LAMB),
    BUFFERED = RULE(MOMENTUM) | RULE(NESTEROV),
    FALLING = SCHEDULE(LINEAR) | SCHEDULE(COSINE)
};

/* `choices` of the key `of` know `key`. */
typedef struct use {
    const char *key, *of;
    unsigned choices;
} use;

static const char family_key[] = "model.family", format_key[] = "data.format",
                  rule_key[] = "train.optimizer.name", schedule_key[] = "train.schedule.name",
                  mode_key[] = "parallel.mode", search_key[] = "parallel.search";
enum {
    AUTO = 1u << WEFT_JOB_MODE_AUTO,
    LISTED = 1u << WEFT_SEARCH_PROPAGATION | 1u << WEFT_SEARCH_DYNAMIC,
    DYNAMIC = 1u << WEFT_SEARCH_DYNAMIC,
    JOINT = 1u << WEFT_SEARCH_JOINT,
    OTHERS = LISTED | 1u << WEFT_SEARCH_RECURSIVE
};
static const use uses[] = {
    {"model.layers", family_key, LAYERED},
    {"model.hidden", family_key, WEFTI_FAMILIES_WITH(WEFTI_HIDDEN)},
    {"model.heads", family_key, BLOCKS},
    {"model.kv_heads", family_key, ROTARY},
    {"model.head_dim", family_key, ROTARY},
    {"model.window", family_key, WINDOWED},
    {"model.ffn", family_key, BLOCKS},
    {"model.context", family_key, LANGUAGE},
    {"model.vocab", family_key, LANGUAGE},
    {"model.classes", family_key, IMAGES},
    {"model.image", family_key, IMAGES},
    {"model.patch", family_key, WEFTI_FAMILIES_WITH(WEFTI_PATCHES)},
    {"model.norm_eps", family_key, WEFTI_FAMILIES_WITH(WEFTI_NORM_EPS)},
    {"model.experts", family_key, EXPERTS},
    {"model.experts_per_token", family_key, EXPERTS},
    {"model.capacity_factor", family_key, EXPERTS},
    {"model.aux_loss", family_key, EXPERTS},
    {"model.rope_theta", family_key, ROTARY},
    {"model.lora.rank", family_key, WEFTI_FAMILIES_WITH(WEFTI_GENERATES)},
    {"data.labels", format_key, LABELLED},
    {"data.validation_labels", format_key, LABELLED},
    {"data.tokenizer", format_key, WRITTEN_AS_TEXT},
    {"train.optimizer.betas", rule_key, TWO_MOMENTS | RULE(LION)},
    {"train.optimizer.eps", rule_key, TWO_MOMENTS | RULE(ADAFACTOR) | RULE(ADAGRAD)},
    {"train.optimizer.initial_accumulator", rule_key, RULE(ADAGRAD)},
    {"train.optimizer.momentum", rule_key, BUFFERED},
    {"train.rows", mode_key, ((1u << WEFT_JOB_MODES) - 1) & ~(unsigned)AUTO},
    {"train.schedule.final", schedule_key, FALLING},
    {"train.schedule.every", schedule_key, SCHEDULE(STEP)},
    {"train.schedule.factor", schedule_key, SCHEDULE(STEP)},
    {"parallel.search", mode_key, AUTO},
    {"parallel.cost.model", mode_key, AUTO},
    {"parallel.cost.alpha", mode_key, AUTO},
    {"parallel.cost.beta", mode_key, AUTO},
    {"parallel.cost.gamma", mode_key, AUTO},
    {"parallel.cost.threshold", mode_key, AUTO},
    {"parallel.cost.constant", mode_key, AUTO},
    {"parallel.cost.bias", mode_key, AUTO},
    {"parallel.cost.capacity", mode_key, AUTO},
    {"parallel.cost.phase", mode_key, AUTO},
    {"parallel.algorithm.fully_use_devices", mode_key, AUTO},
    {"parallel.algorithm.elementwise_op_strategy_follow", mode_key, AUTO},
    {"parallel.algorithm.enable_algo_approxi", mode_key, AUTO},
    {"parallel.algorithm.epsilon", mode_key, AUTO},
    {"parallel.algorithm.tensor_slice_align", mode_key, AUTO},
    {"parallel.algorithm.fully_use_devices", search_key, LISTED},
    {"parallel.algorithm.elementwise_op_strategy_follow", search_key, LISTED},
    {"parallel.algorithm.enable_algo_approxi", search_key, DYNAMIC},
    {"parallel.algorithm.epsilon", search_key, DYNAMIC},
    {"parallel.algorithm.tensor_slice_align", search_key, LISTED},
    {"parallel.cost.model", search_key, OTHERS},
    {"parallel.cost.alpha", search_key, OTHERS},
    {"parallel.cost.beta", search_key, OTHERS},
    {"parallel.cost.gamma", search_key, OTHERS},
    {"parallel.cost.threshold", search_key, OTHERS},
    {"parallel.cost.constant", search_key, OTHERS},
    {"parallel.cost.bias", search_key, OTHERS},
    {"parallel.cost.capacity", search_key, OTHERS},
    {"parallel.cost.phase", search_key, OTHERS},
    {"parallel.fix", mode_key, AUTO},
    {"parallel.fix", search_key, JOINT},
    {"parallel.evaluations", mode_key, AUTO},
    {"parallel.evaluations", search_key, JOINT},
    {"parallel.search_seconds", mode_key, AUTO},
    {"parallel.search_seconds", search_key, JOINT},
};

static const wefti_job_row *row_of(const char *key) {
    int rows;
    const wefti_job_row *table = wefti_job_table(&rows);
    while (strcmp(table->path, key) != 0) table++;
    return table;
}

/* The index of the choice for the key `of`. */
static int chosen(const weft_job *job, const char *of) {
    return *(const int *)(const void *)((const char *)job + row_of(of)->offset);
}

/* The family and the kind of data are still unknown here: the model's files hold them. */
static bool known(const weft_job *job, const use *u) {
    bool told = *wefti_job_model_files(&job->model) && (u->of == family_key || u->of == format_key);
    return told || u->choices >> chosen(job, u->of) & 1;
}

static weft_status refuse(const wefti_job_draft *draft, const use *u) {
    char where[512], list[200] = "";
    const wefti_job_row *of = row_of(u->of);
    for (int c = 0; of->words[c]; c++) {
        if (!(u->choices >> c & 1)) continue;
        size_t used = strlen(list);
        (void)snprintf(list + used, sizeof list - used, "%s%s", used ? ", " : "", of->words[c]);
    }
    WEFT_FAIL(WEFT_E_ARG, "%s%s says nothing of %s, only of %s; leave it out",
              wefti_job_where(draft, wefti_job_mark_of(draft, u->key), where), u->key,
              of->words[chosen(&draft->job, u->of)], list);
}

/* A truth value is allowed if the family has the same value anyway: a tied output layer, or no
 * biases. */
typedef struct flag {
    use use; /* if there is a choice */
    unsigned on, off;
} flag;

enum {
    BIASED = WEFTI_FAMILIES_WITH(WEFTI_BIASED),
    QKV_BIASED = WEFTI_FAMILIES_WITH(WEFTI_BIASED | WEFTI_QKV_BIASED),
    ATTENTION_BIAS = WEFTI_FAMILIES_WITH(WEFTI_ATTENTION_BIAS),
    MLP_BIAS = WEFTI_FAMILIES_WITH(WEFTI_MLP_BIAS)
};
static const flag flags[] = {
    {{"model.tied", family_key, ROTARY}, LANGUAGE, ROTARY | IMAGES},
    {{"model.attention_bias", family_key, ATTENTION_BIAS}, ATTENTION_BIAS, ~(unsigned)QKV_BIASED},
    {{"model.mlp_bias", family_key, MLP_BIAS}, MLP_BIAS, ~(unsigned)BIASED},
};
enum { FLAGS = sizeof flags / sizeof *flags };

static weft_status check_flag(const wefti_job_draft *draft, const flag *f) {
    if (!wefti_job_mark_of(draft, f->use.key)->given) return WEFT_OK;
    bool value = *(const bool *)((const char *)&draft->job + row_of(f->use.key)->offset);
    const use is = {f->use.key, f->use.of, value ? f->on : f->off};
    return known(&draft->job, &is) ? WEFT_OK : refuse(draft, &f->use);
}

/* Other families have no dropout, so 0 is allowed. */
weft_status wefti_job_check_uses(const wefti_job_draft *draft) {
    const weft_job_model *m = &draft->job.model;
    for (size_t i = 0; i < sizeof uses / sizeof *uses; i++)
        if (wefti_job_mark_of(draft, uses[i].key)->given && !known(&draft->job, &uses[i]))
            return refuse(draft, &uses[i]);
    const use dropout = {"model.dropout", family_key, LAYERED};
    if (m->dropout > 0 && !known(&draft->job, &dropout)) return refuse(draft, &dropout);
    for (int i = 0; i < FLAGS; i++) WEFT_TRY(check_flag(draft, &flags[i]));
    return WEFT_OK;
}

bool wefti_job_is_used(const weft_job *job, const char *key) {
    for (size_t i = 0; i < sizeof uses / sizeof *uses; i++)
        if (!strcmp(uses[i].key, key) && !known(job, &uses[i])) return false;
    for (int i = 0; i < FLAGS; i++)
        if (!strcmp(flags[i].use.key, key)) return known(job, &flags[i].use);
    return true;
}
