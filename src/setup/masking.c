/* Masked language modelling for models without a causal mask.
 *
 * 15 % of all positions become targets. Of these, 80 % show the mask token, 10 % a random token, 10
 * % their own token. Every other target is -1 and ignored. The choice depends on seed and global
 * position only. Source: Devlin et al., "BERT", 2019, section 3.1. */
#include "base/philox.h"
#include "setup/objective.h"

int32_t wefti_mask_token(const weft_data *data, int64_t vocab) {
    const weft_tokenizer *tokenizer = weft_data_tokenizer(data);
    static const char *const names[] = {"[MASK]", "<mask>"};
    for (int i = 0; tokenizer && i < 2; i++) {
        int32_t id = weft_tokenizer_find(tokenizer, names[i]);
        if (id >= 0) return id;
    }
    return (int32_t)(vocab - 1);
}

/* The random numbers of a position; false: it is no target. */
static bool draw_position(uint64_t seed, uint64_t stream, int64_t position, uint32_t word[4]) {
    wefti_philox_block(seed, stream, (uint64_t)position, word);
    return word[0] < UINT32_C(644245094); /* 0.15 * 2^32 */
}

int64_t wefti_masked_count(uint64_t seed, int64_t first_position, int64_t count) {
    uint64_t stream = wefti_stream_of("masked positions");
    int64_t targets = 0;
    uint32_t word[4];
    for (int64_t i = 0; i < count; i++)
        targets += draw_position(seed, stream, first_position + i, word);
    return targets;
}

void wefti_mask_tokens(uint64_t seed, int64_t first_position, int64_t count, int32_t mask_token,
                       int64_t vocab, int32_t *tokens, int32_t *targets) {
    uint64_t stream = wefti_stream_of("masked positions");
    for (int64_t i = 0; i < count; i++) {
        uint32_t word[4];
        targets[i] = -1;
        if (!draw_position(seed, stream, first_position + i, word)) continue;
        targets[i] = tokens[i];
        uint32_t choice = word[1] % 10;
        if (choice < 8)
            tokens[i] = mask_token;
        else if (choice == 8)
            tokens[i] = (int32_t)(word[2] % (uint32_t)vocab);
    }
}
