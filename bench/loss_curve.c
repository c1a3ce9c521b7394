/* Losses of a Hugging Face model trained on given tokens: the counterpart of
 * bench/peers/gpt2_loss_curve.py.
 *
 *     bench/loss_curve DIR tokens.npy [--lr 3e-4] [--precision f32|bf16]
 *
 * tokens.npy holds integers [steps, batch, seq + 1]. The optimizer is AdamW (0.9, 0.95) with decay
 * 0.1 of matrices. The program prints one loss per line, taken before the update. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "interop/pretrained.h"
#include "train/training.h"
#include "weft/weft.h"

static void check(weft_status status) {
    if (status >= 0) return;
    fprintf(stderr, "bench/loss_curve: %s\n", weft_error_message());
    exit(1);
}

/* Reads a .npy of i4 or i8 with three dimensions in C order. */
static int32_t *read_tokens(const char *path, int64_t shape[3]) {
    FILE *f = fopen(path, "rb");
    unsigned char head[10];
    char text[4096];
    if (!f || fread(head, 1, 10, f) != 10 || memcmp(head, "\x93NUMPY", 6)) {
        fprintf(stderr, "bench/loss_curve: %s is no .npy file\n", path);
        exit(1);
    }
    size_t length = (size_t)head[8] | (size_t)head[9] << 8;
    if (length >= sizeof text || fread(text, 1, length, f) != length) exit(1);
    text[length] = 0;
    const char *at = strstr(text, "'shape': (");
    if (!at || sscanf(at, "'shape': (%ld, %ld, %ld", &shape[0], &shape[1], &shape[2]) != 3) exit(1);
    bool wide = strstr(text, "i8") != NULL;
    int64_t count = shape[0] * shape[1] * shape[2];
    int32_t *tokens = malloc((size_t)count * 4);
    if (!tokens) exit(1);
    for (int64_t i = 0; i < count; i++) {
        int64_t value = 0;
        if (fread(&value, wide ? 8 : 4, 1, f) != 1) exit(1);
        tokens[i] = (int32_t)value;
    }
    fclose(f);
    return tokens;
}

int main(int argc, char **argv) {
    if (argc < 3) return fprintf(stderr, "usage: loss_curve DIR tokens.npy [--lr X]\n"), 2;
    double lr = 3e-4;
    weft_dtype dtype = WEFT_F32;
    for (int i = 3; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--lr")) lr = atof(argv[i + 1]);
        if (!strcmp(argv[i], "--precision") && !strcmp(argv[i + 1], "bf16")) dtype = WEFT_BF16;
    }
    int64_t shape[3];
    int32_t *tokens = read_tokens(argv[2], shape);
    int64_t steps = shape[0], batch = shape[1], seq = shape[2] - 1;
    weft_model_config config;
    check(wefti_pretrained_config(argv[1], &config));
    config.dropout = 0; /* as in the counterpart: only the arithmetic is compared */
    weft_graph *g;
    weft_session *s;
    weft_session_options o = weft_session_defaults();
    check(weft_model_build(&config, WEFT_USE_TRAIN, batch, seq, dtype, &g));
    check(weft_session_create(g, &o, &s));
    check(wefti_pretrained_load(s, &config, argv[1]));
    size_t bytes = (size_t)(batch * seq) * 4;
    int32_t *in = malloc(bytes), *target = malloc(bytes);
    if (!in || !target) return 1;
    for (int64_t k = 0; k < steps; k++) {
        for (int64_t b = 0; b < batch; b++) {
            const int32_t *row = tokens + (k * batch + b) * (seq + 1);
            memcpy(in + b * seq, row, (size_t)seq * 4);
            memcpy(target + b * seq, row + 1, (size_t)seq * 4);
        }
        double loss;
        check(weft_session_feed(s, 0, "tokens", in, bytes));
        check(weft_session_feed(s, 0, "targets", target, bytes));
        check(weft_session_step(s, lr, &loss));
        printf("%.9g\n", loss);
    }
    weft_session_destroy(s);
    weft_graph_destroy(g);
    free(in);
    free(target);
    free(tokens);
    return 0;
}
