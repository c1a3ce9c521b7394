/* The key that a user means by another word. See job/job.h. */
#include "job/job.h"

#include <stdio.h>
#include <string.h>

/* What other systems call a key. */
static const struct {
    const char *word, *path;
} synonyms[] = {
    {"learning_rate", "train.optimizer.lr"},
    {"batch_size", "train.batch"},
    {"micro_batch_size", "train.batch"},
    {"global_batch_size", "train.batch"},
    {"per_device_train_batch_size", "train.batch"},
    {"gradient_accumulation_steps", "train.accumulate"},
    {"iterations", "train.steps"},
    {"train_iters", "train.steps"},
    {"dtype", "train.precision"},
    {"fp8", "train.products"},
    {"grad_clip", "train.clip"},
    {"clip_grad", "train.clip"},
    {"max_grad_norm", "train.clip"},
    {"output_dir", "checkpoint.dir"},
    {"save_dir", "checkpoint.dir"},
    {"save_steps", "checkpoint.every"},
    {"save_interval", "checkpoint.every"},
    {"save_total_limit", "checkpoint.keep"},
    {"resume_from_checkpoint", "checkpoint.resume"},
    {"eval_steps", "train.eval_every"},
    {"eval_interval", "train.eval_every"},
    {"logging_dir", "train.tensorboard"},
    {"lr_scheduler_type", "train.schedule.name"},
    {"lr_decay_style", "train.schedule.name"},
    {"warmup_steps", "train.schedule.warmup"},
    {"model_name_or_path", "model.from"},
    {"num_layers", "model.layers"},
    {"n_layer", "model.layers"},
    {"hidden_size", "model.hidden"},
    {"n_embd", "model.hidden"},
    {"num_attention_heads", "model.heads"},
    {"n_head", "model.heads"},
    {"num_experts", "model.experts"},
    {"seq_len", "model.context"},
    {"seq_length", "model.context"},
    {"block_size", "model.context"},
    {"max_seq_length", "model.context"},
    {"vocab_size", "model.vocab"},
    {"dataset", "data.path"},
    {"dataset_name", "data.path"},
    {"data_path", "data.path"},
    {"search_mode", "parallel.search"},
    {"auto_parallel_search_mode", "parallel.search"},
    {"pipeline_parallel_size", "parallel.pipeline.stages"},
    {"pipeline_stages", "parallel.pipeline.stages"},
    {"offload_optimizer", "memory.offload"},
    {"optimizer_offload", "memory.offload"},
    {"cpu_offload", "memory.offload"},
    {"activation_offload", "memory.offload"},
    {"zero_stage", "parallel.optimizer.level"},
};

/* The last word of a path: "lr" of "train.optimizer.lr". */
static const char *last_of(const char *path) {
    const char *dot = strrchr(path, '.');
    return dot ? dot + 1 : path;
}

/* The first key whose last word is `word`, NULL if none is. */
static const char *by_last(const wefti_job_row *table, int rows, const char *word) {
    for (int i = 0; i < rows; i++)
        if (wefti_same_word(last_of(table[i].path), word)) return table[i].path;
    return NULL;
}

static const char *by_synonym(const char *word) {
    for (size_t i = 0; i < sizeof synonyms / sizeof *synonyms; i++)
        if (wefti_same_word(synonyms[i].word, word)) return synonyms[i].path;
    return NULL;
}

/* The nearest path; of a word without dots the nearest last word. Short words are near to too many.
 */
static const char *by_distance(const wefti_job_row *table, int rows, const char *word) {
    enum { SHORTEST = 5 };
    const char *names[WEFTI_JOB_KEYS_MAX + 1];
    const bool path = strchr(word, '.') != NULL;
    if (strlen(word) < SHORTEST) return NULL;
    for (int i = 0; i < rows; i++) names[i] = path ? table[i].path : last_of(table[i].path);
    names[rows] = NULL;
    const char *near = weft_nearest(word, names);
    return near && !path ? by_last(table, rows, near) : near;
}

const char *weft_job_near_key(const char *word) {
    int rows;
    const wefti_job_row *table = wefti_job_table(&rows);
    if (!word || !*word) return NULL;
    for (int i = 0; i < rows; i++)
        if (wefti_same_word(table[i].path, word)) return table[i].path;
    const char *last = last_of(word), *found = by_last(table, rows, last);
    if (!found) found = by_synonym(last);
    /* max-steps, num_heads */
    const char *part = last + strcspn(last, "-_");
    if (!found && *part) found = by_last(table, rows, part + 1);
    return found ? found : by_distance(table, rows, word);
}
