/* Times training steps of a residual network, the counterpart of bench/peers/resnet_torch.py. A
 * step is forward, cross entropy, backward, and SGD with momentum 0.9, on random images made once.
 *
 *     bench/resnet [--batch 32] [--size 64] [--classes 1000] [--deep] [--precision f32|bf16]
 *                  [--steps 8] [--warmup 2] [--threads 2] [--trace FILE] [--json]
 *                  [--interactive]
 *
 * `--deep` takes ResNet-50, else ResNet-18. `--trace` records the steps after the warm-up. Without
 * `--interactive` the program prints each step (not with `--json`) and, last, one JSON object. With
 * it, it follows the protocol of bench/peers/stepper.py, so that two programs can take turns. */
#include "stepper.h"

typedef struct bench {
    weft_session *session;
    float *images;
    int32_t *labels;
    size_t image_bytes, label_bytes;
} bench;

static double step(void *context) {
    bench *b = context;
    double start = stepper_now();
    stepper_check(weft_session_feed(b->session, 0, "image", b->images, b->image_bytes));
    stepper_check(weft_session_feed(b->session, 0, "label", b->labels, b->label_bytes));
    stepper_check(weft_session_step(b->session, 0.01, NULL));
    return stepper_now() - start;
}

/* Values with about the variance of normalised images. */
static void make_images(bench *b, int64_t classes) {
    uint32_t state = 1;
    b->images = malloc(b->image_bytes);
    b->labels = malloc(b->label_bytes);
    if (!b->images || !b->labels) exit(1);
    for (size_t i = 0; i < b->image_bytes / 4; i++) {
        state = state * 1664525u + 1013904223u;
        b->images[i] = ((float)(state >> 8) / 8388608.0f - 1.0f) * 1.7f;
    }
    for (size_t i = 0; i < b->label_bytes / 4; i++) {
        state = state * 1664525u + 1013904223u;
        b->labels[i] = (int32_t)((state >> 8) % (uint32_t)classes);
    }
}

int main(int argc, char **argv) {
    int64_t batch = 32, size = 64;
    weft_model_config c = {.family = WEFT_FAMILY_RESNET18, .classes = 1000};
    weft_session_options o = weft_session_defaults();
    o.optimizer = (weft_optimizer){.kind = WEFT_MOMENTUM, .momentum = 0.9};
    static stepper s = {.step = step, .steps = 8, .warmup = 2};
    const char *precision = "f32";
    bool deep = false;
    const stepper_option options[] = {{"--deep", STEPPER_FLAG, &deep},
                                      {"--batch", STEPPER_LONG, &batch},
                                      {"--size", STEPPER_LONG, &size},
                                      {"--classes", STEPPER_LONG, &c.classes},
                                      {"--precision", STEPPER_TEXT, &precision},
                                      {"--threads", STEPPER_INT, &o.threads},
                                      {NULL, STEPPER_FLAG, NULL}};
    if (!stepper_read(&s, options, argc, argv)) return 2;
    if (deep) c.family = WEFT_FAMILY_RESNET50;
    c.image[0] = 3;
    c.image[1] = c.image[2] = size;
    bench b = {.image_bytes = (size_t)(batch * 3 * size * size) * 4,
               .label_bytes = (size_t)batch * 4};
    weft_graph *g;
    weft_dtype dtype = strcmp(precision, "bf16") ? WEFT_F32 : WEFT_BF16;
    stepper_check(weft_model_complete(&c));
    stepper_check(weft_model_build(&c, WEFT_USE_TRAIN, batch, 0, dtype, &g));
    stepper_check(weft_session_create(g, &o, &b.session));
    make_images(&b, c.classes);
    s.context = &b;
    s.session = b.session;
    stepper_drive(&s);
    char facts[160];
    snprintf(facts, sizeof facts,
             "\"model\": \"%s\", \"precision\": \"%s\", \"batch\": %lld, \"size\": %lld,",
             weft_family_text(c.family), precision, (long long)batch, (long long)size);
    stepper_report(&s, facts, "images_per_second", (double)batch,
                   weft_session_memory_of(b.session));
    weft_session_destroy(b.session);
    weft_graph_destroy(g);
    free(b.images);
    free(b.labels);
    return 0;
}
