/* The cosine and sine table of rotary positions. Source: Su et al.,
 * "RoFormer", 2021, section 3.2.
 *
 * Scaling (weft_rope_scaling) divides frequencies by a factor, in one of three ways:
 * - It divides all frequencies.
 * - As in Llama 3.1: it divides frequencies with wavelengths longer than the original context. It
 * keeps those with wavelengths shorter than a fraction of the context, and blends between the two.
 * - As in YaRN: it blends linearly in the number of the pair. */
#include <math.h>

#include "backend/cpu/kernels/data.h"

static const double two_pi = 2.0 * 3.14159265358979323846;

/* The pair, as a real number, that turns `turns` times in `context` positions. */
static double pair_of(double turns, double context, int64_t rotary, double theta) {
    return (double)rotary * log(context / (turns * two_pi)) / (2.0 * log(theta));
}

/* The share of YaRN's division that pair i gets, from 0 to 1. */
static double divided(int64_t i, int64_t rotary, double theta, const weft_rope_scaling *scaling) {
    double context = (double)scaling->original_context;
    double low = pair_of(scaling->beta_fast, context, rotary, theta);
    double high = pair_of(scaling->beta_slow, context, rotary, theta);
    if (!scaling->exact) low = floor(low), high = ceil(high);
    if (low < 0.0) low = 0.0;
    if (high > (double)(rotary - 1)) high = (double)(rotary - 1);
    if (low == high) high += 0.001;
    double part = ((double)i - low) / (high - low);
    return part < 0.0 ? 0.0 : part > 1.0 ? 1.0 : part;
}

static double scaled(double frequency, int64_t i, int64_t rotary, double theta,
                     const weft_rope_scaling *scaling) {
    if (scaling->factor == 0.0) return frequency;
    if (scaling->original_context == 0) return frequency / scaling->factor;
    if (scaling->beta_fast > 0.0) {
        double part = divided(i, rotary, theta, scaling);
        return part * frequency / scaling->factor + (1.0 - part) * frequency;
    }
    double wavelength = two_pi / frequency;
    double context = (double)scaling->original_context;
    double low = scaling->low_freq_factor, high = scaling->high_freq_factor;
    if (wavelength < context / high) return frequency;
    if (wavelength > context / low) return frequency / scaling->factor;
    double smooth = (context / wavelength - low) / (high - low);
    return (1.0 - smooth) * frequency / scaling->factor + smooth * frequency;
}

/* Frequencies and angles are rounded to f32 where transformers rounds them: far positions of a
 * model turn as they did when it was trained. */
void wefti_rope_frequencies(int64_t rotary, double theta, const weft_rope_scaling *scaling,
                            double *out) {
    for (int64_t i = 0; i < rotary / 2; i++) {
        const float power = (float)pow(theta, (double)((float)(2 * i) / (float)rotary));
        out[i] = (float)scaled((double)(1.0f / power), i, rotary, theta, scaling);
    }
}

void wefti_rope_row(int64_t position, int64_t half, const double *frequencies, float *cos_out,
                    float *sin_out) {
    for (int64_t i = 0; i < half; i++) {
        const double angle = (float)((double)position * frequencies[i]);
        cos_out[i] = (float)cos(angle);
        sin_out[i] = (float)sin(angle);
    }
}
