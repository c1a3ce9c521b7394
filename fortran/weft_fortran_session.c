/* Plans, sessions, data and models of the Fortran module `weft`. */
#include "weft_fortran.h"

#include <stdio.h>

/* ---- plans ---- */

weft_status weft_fortran_plan_axis(weft_plan *plan, const CFI_cdesc_t *name, int size) {
    WEFT_FORTRAN_TEXT(text, name);
    return weft_plan_axis(plan, text, size);
}
weft_status weft_fortran_plan_split_op(weft_plan *plan, const CFI_cdesc_t *match,
                                       const CFI_cdesc_t *split) {
    WEFT_FORTRAN_TEXT(pattern, match);
    WEFT_FORTRAN_TEXT(text, split);
    return weft_plan_split_op(plan, pattern, text);
}
weft_status weft_fortran_plan_split_tensor(weft_plan *plan, const CFI_cdesc_t *match,
                                           const CFI_cdesc_t *layout) {
    WEFT_FORTRAN_TEXT(pattern, match);
    WEFT_FORTRAN_TEXT(text, layout);
    return weft_plan_split_tensor(plan, pattern, text);
}
weft_status weft_fortran_plan_optimizer(weft_plan *plan, int level, const int64_t *threshold,
                                        const int *shard) {
    return weft_plan_optimizer(plan, level, threshold ? *threshold : 0, shard ? *shard : 0);
}
weft_status weft_fortran_plan_pipeline(weft_plan *plan, int stages, int microbatches, int schedule,
                                       const int *chunks) {
    return weft_plan_pipeline(plan, stages, microbatches, (weft_schedule)schedule,
                              chunks ? *chunks : 1);
}
weft_status weft_fortran_plan_stage(weft_plan *plan, const CFI_cdesc_t *match, int stage) {
    WEFT_FORTRAN_TEXT(pattern, match);
    return weft_plan_stage(plan, pattern, stage);
}
weft_status weft_fortran_plan_offload(weft_plan *plan, const CFI_cdesc_t *match, int what, int to) {
    WEFT_FORTRAN_TEXT(pattern, match);
    return weft_plan_offload(plan, pattern, (weft_offload)what, (weft_tier)to);
}
weft_status weft_fortran_plan_cache(weft_plan *plan, const CFI_cdesc_t *match, int what,
                                    int64_t bytes) {
    WEFT_FORTRAN_TEXT(pattern, match);
    return weft_plan_cache(plan, pattern, (weft_offload)what, bytes);
}
weft_status weft_fortran_plan_cache_percent(weft_plan *plan, const CFI_cdesc_t *match, int what,
                                            double percent) {
    WEFT_FORTRAN_TEXT(pattern, match);
    return weft_plan_cache_percent(plan, pattern, (weft_offload)what, percent);
}
weft_status weft_fortran_op_place(weft_plan *plan, const CFI_cdesc_t *match,
                                  const CFI_cdesc_t *where) {
    WEFT_FORTRAN_TEXT(pattern, match);
    WEFT_FORTRAN_TEXT(text, where);
    return weft_op_place(plan, pattern, text);
}
weft_status weft_fortran_plan_server(weft_plan *plan, const CFI_cdesc_t *match) {
    WEFT_FORTRAN_TEXT(pattern, match);
    return weft_plan_server(plan, pattern);
}
weft_status weft_fortran_plan_stage_mesh(weft_plan *plan, int stage, const CFI_cdesc_t *sizes) {
    int count = weft_fortran_count(sizes), list[count + 1];
    for (int i = 0; i < count; i++) list[i] = weft_fortran_int(sizes, i);
    return weft_plan_stage_mesh(plan, stage, count, list);
}
weft_status weft_fortran_plan_recompute(weft_plan *plan, int mode, const CFI_cdesc_t *match,
                                        int communication) {
    WEFT_FORTRAN_TEXT(pattern, match);
    return weft_plan_recompute(plan, (weft_recompute)mode, pattern[0] ? pattern : NULL,
                               communication != 0);
}
weft_status weft_fortran_plan_gradients_sum(weft_plan *plan, int sum) {
    return weft_plan_gradients_sum(plan, sum != 0);
}
weft_status weft_fortran_plan_fusion(weft_plan *plan, const CFI_cdesc_t *collective, int mode,
                                     const int64_t *bytes, const CFI_cdesc_t *index) {
    WEFT_FORTRAN_TEXT(text, collective);
    int count = weft_fortran_count(index), list[count + 1];
    for (int i = 0; i < count; i++) list[i] = weft_fortran_int(index, i);
    return weft_plan_fusion(plan, text, (weft_fusion_mode)mode, bytes ? *bytes : 0, count, list);
}
weft_status weft_fortran_plan_overlap(weft_plan *plan, int overlap) {
    return weft_plan_overlap(plan, overlap != 0);
}
weft_status weft_fortran_plan_dataset_cuts(weft_plan *plan, const CFI_cdesc_t *cuts) {
    WEFT_FORTRAN_TEXT(text, cuts);
    return weft_plan_dataset_cuts(plan, text);
}
weft_status weft_fortran_plan_links(weft_plan *plan, const CFI_cdesc_t *path) {
    WEFT_FORTRAN_TEXT(file, path);
    return weft_plan_links(plan, file);
}
weft_status weft_fortran_plan_parse(const CFI_cdesc_t *name, const CFI_cdesc_t *text,
                                    weft_plan **out) {
    WEFT_FORTRAN_TEXT(called, name);
    return weft_plan_parse(called, text->base_addr, (int64_t)text->elem_len, out);
}
weft_status weft_fortran_plan_load(const CFI_cdesc_t *path, weft_plan **out) {
    WEFT_FORTRAN_TEXT(file, path);
    return weft_plan_load(file, out);
}
weft_status weft_fortran_plan_save(const weft_plan *plan, const CFI_cdesc_t *path) {
    WEFT_FORTRAN_TEXT(file, path);
    return weft_plan_save(plan, file);
}

/* ---- sessions ---- */

weft_session_options weft_fortran_session_defaults(void) {
    return weft_session_defaults();
}
weft_status weft_fortran_session_create(weft_graph *graph, const weft_session_options *options,
                                        weft_session **out, weft_plan *const *plan,
                                        weft_world *const *world) {
    weft_session_options o = options ? *options : weft_session_defaults();
    if (plan) o.plan = *plan;
    if (world) o.world = *world;
    return weft_session_create(graph, &o, out);
}

static weft_status bytes_of(const CFI_cdesc_t *array, size_t *out) {
    int64_t elements = weft_fortran_elements(array);
    if (!weft_fortran_contiguous(array))
        return weft_error_raise(WEFT_E_ARG, "the array is not contiguous");
    if (elements < 0)
        return weft_error_raise(WEFT_E_ARG, "an array of assumed size: give its part, as a(1:n)");
    *out = (size_t)elements * array->elem_len;
    return WEFT_OK;
}

/* Reals of another kind than the tensor's would have a size that fits, and mean something else. */
static weft_status same_type(const weft_session *s, int program, const char *name,
                             const CFI_cdesc_t *array) {
    weft_tensor_info info;
    weft_dtype dtype;
    weft_status status = weft_session_find(s, program, name, &info);
    if (status < 0 || !weft_fortran_dtype(array, &dtype) || dtype == info.desc.dtype) return status;
    char message[256];
    (void)snprintf(message, sizeof message, "'%.100s' is %s; the array is %s", name,
                   weft_dtype_text(info.desc.dtype), weft_dtype_text(dtype));
    return weft_error_raise(WEFT_E_ARG, message);
}

/* How arrays come in and out: one rule for all types and shapes. */
#define WITH_ARRAY(call)                                                                           \
    weft_status weft_fortran_##call(weft_session *s, const CFI_cdesc_t *name,                      \
                                    const CFI_cdesc_t *array, const int *program) {                \
        WEFT_FORTRAN_TEXT(text, name);                                                             \
        size_t bytes;                                                                              \
        weft_status status = bytes_of(array, &bytes);                                              \
        if (status >= 0) status = same_type(s, program ? *program : 0, text, array);               \
        if (status < 0) return status;                                                             \
        return weft_##call(s, program ? *program : 0, text, array->base_addr, bytes);              \
    }
WITH_ARRAY(session_feed)
WITH_ARRAY(session_feed_ahead)
WITH_ARRAY(session_feed_rows)
WITH_ARRAY(session_feed_local)
WITH_ARRAY(session_read)
WITH_ARRAY(session_write)

weft_status weft_fortran_session_read_rows(weft_session *s, const CFI_cdesc_t *name,
                                           const CFI_cdesc_t *array, int64_t first,
                                           const int *program) {
    WEFT_FORTRAN_TEXT(text, name);
    size_t bytes;
    weft_status status = bytes_of(array, &bytes);
    if (status >= 0) status = same_type(s, program ? *program : 0, text, array);
    if (status < 0) return status;
    return weft_session_read_rows(s, program ? *program : 0, text, first, array->base_addr, bytes);
}
weft_status weft_fortran_session_rows(const weft_session *s, int program, const CFI_cdesc_t *name,
                                      int64_t *first, int64_t *rows) {
    WEFT_FORTRAN_TEXT(text, name);
    return weft_session_rows(s, program, text, first, rows);
}
weft_status weft_fortran_session_local(weft_session *s, const CFI_cdesc_t *name,
                                       weft_session_part *out, const int *program) {
    WEFT_FORTRAN_TEXT(text, name);
    return weft_session_local(s, program ? *program : 0, text, out);
}
weft_status weft_fortran_session_forward(weft_session *s, const int *program, double *out_loss) {
    return weft_session_forward(s, program ? *program : 0, out_loss);
}
weft_status weft_fortran_session_find(const weft_session *s, int program, const CFI_cdesc_t *name,
                                      weft_tensor_info *out) {
    WEFT_FORTRAN_TEXT(text, name);
    return weft_session_find(s, program, text, out);
}
static weft_session_save_options save_options(const int64_t *keep, const int64_t *position,
                                              const bool *sliced) {
    return WEFT_STRUCT(weft_session_save_options, .keep = keep ? *keep : 0,
                       .position = position ? *position : 0, .sliced = sliced && *sliced);
}

weft_status weft_fortran_session_save(weft_session *s, const CFI_cdesc_t *dir, const int64_t *keep,
                                      const int64_t *position, const bool *sliced) {
    WEFT_FORTRAN_TEXT(path, dir);
    const weft_session_save_options options = save_options(keep, position, sliced);
    return weft_session_save(s, path, &options);
}

weft_status weft_fortran_session_save_start(weft_session *s, const CFI_cdesc_t *dir,
                                            const int64_t *keep, const int64_t *position,
                                            const bool *sliced) {
    WEFT_FORTRAN_TEXT(path, dir);
    const weft_session_save_options options = save_options(keep, position, sliced);
    return weft_session_save_start(s, path, &options);
}

weft_status weft_fortran_session_split(weft_session *s, const CFI_cdesc_t *match, int dimension,
                                       const int *count, const int *stride) {
    WEFT_FORTRAN_TEXT(text, match);
    return weft_session_split(s, text, dimension, count ? *count : 0, stride ? *stride : 0);
}

weft_status weft_fortran_session_load(weft_session *s, const CFI_cdesc_t *dir, int64_t step,
                                      int64_t *position) {
    WEFT_FORTRAN_TEXT(path, dir);
    return weft_session_load(s, path, step, position);
}

weft_status weft_fortran_session_save_local(weft_session *s, const CFI_cdesc_t *path) {
    WEFT_FORTRAN_TEXT(file, path);
    return weft_session_save_local(s, file);
}

weft_status weft_fortran_session_load_local(weft_session *s, const CFI_cdesc_t *path) {
    WEFT_FORTRAN_TEXT(file, path);
    return weft_session_load_local(s, file);
}

weft_status weft_fortran_session_trace(weft_session *s, const CFI_cdesc_t *path) {
    WEFT_FORTRAN_TEXT(file, path);
    return weft_session_trace(s, path ? file : NULL);
}

/* ---- data and models ---- */

weft_status weft_fortran_data_open(const CFI_cdesc_t *format, const CFI_cdesc_t *path,
                                   weft_data **out, const CFI_cdesc_t *labels,
                                   const CFI_cdesc_t *validation_path,
                                   const CFI_cdesc_t *validation_labels,
                                   const double *validation_fraction, const CFI_cdesc_t *tokenizer,
                                   const int64_t *context, const int64_t *vocab) {
    WEFT_FORTRAN_TEXT(kind, format);
    WEFT_FORTRAN_TEXT(file, path);
    WEFT_FORTRAN_TEXT(label_file, labels);
    WEFT_FORTRAN_TEXT(validation, validation_path);
    WEFT_FORTRAN_TEXT(validation_label_file, validation_labels);
    WEFT_FORTRAN_TEXT(tokens, tokenizer);
    weft_data_options options = WEFT_STRUCT(
        weft_data_options, .format = kind, .path = file, .labels = labels ? label_file : NULL,
        .validation_path = validation_path ? validation : NULL,
        .validation_labels = validation_labels ? validation_label_file : NULL,
        .validation_fraction = validation_fraction ? *validation_fraction : 0,
        .tokenizer = tokenizer ? tokens : NULL, .context = context ? *context : 0,
        .vocab = vocab ? *vocab : 0);
    return weft_data_open(&options, out);
}

weft_status weft_fortran_data_read(const weft_data *data, int part, int64_t index,
                                   const CFI_cdesc_t *input, const CFI_cdesc_t *target) {
    weft_desc inputs = weft_data_input(data), targets = weft_data_target(data);
    size_t has_input, has_target;
    weft_status status = bytes_of(input, &has_input);
    if (status >= 0) status = bytes_of(target, &has_target);
    if (status < 0) return status;
    if (has_input < (size_t)weft_desc_bytes(&inputs) ||
        has_target < (size_t)weft_desc_bytes(&targets))
        return weft_error_raise(WEFT_E_SHAPE, "the array is too small for a sample");
    return weft_data_read(data, (weft_data_part)part, index, input->base_addr, target->base_addr);
}

weft_status weft_fortran_model_config_read(const CFI_cdesc_t *json, weft_model_config *out) {
    WEFT_FORTRAN_TEXT(text, json);
    return weft_model_config_read(text, out);
}

weft_status weft_fortran_model_config_read_generation(const CFI_cdesc_t *json,
                                                      weft_model_config *config) {
    WEFT_FORTRAN_TEXT(text, json);
    return weft_model_config_read_generation(text, config);
}
