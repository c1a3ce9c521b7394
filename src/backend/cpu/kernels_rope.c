/* The cosine and sine table of rotary positions, in double precision: Su et al., "RoFormer", 2021,
 * section 3.2. Scaling (weft_rope_scaling) divides frequencies by a factor: all of them, or, as in
 * Llama 3.1, those of wavelengths longer than the original context; those shorter than a fraction
 * of it are kept, those between are blended. */
#include <math.h>

#include "backend/cpu/kernels_data.h"

static double scaled(double frequency, const weft_rope_scaling *scaling) {
    if (scaling->factor == 0.0) return frequency;
    if (scaling->original_context == 0) return frequency / scaling->factor;
    double wavelength = 2.0 * 3.14159265358979323846 / frequency;
    double context = (double)scaling->original_context;
    double low = scaling->low_freq_factor, high = scaling->high_freq_factor;
    if (wavelength < context / high) return frequency;
    if (wavelength > context / low) return frequency / scaling->factor;
    double smooth = (context / wavelength - low) / (high - low);
    return (1.0 - smooth) * frequency / scaling->factor + smooth * frequency;
}

void wefti_rope_table(int64_t first, int64_t positions, int64_t rotary, double theta,
                      const weft_rope_scaling *scaling, float *cos_out, float *sin_out) {
    int64_t half = rotary / 2;
    for (int64_t i = 0; i < half; i++) {
        double frequency = scaled(pow(theta, -2.0 * (double)i / (double)rotary), scaling);
        for (int64_t p = 0; p < positions; p++) {
            double angle = (double)(first + p) * frequency;
            cos_out[p * half + i] = (float)cos(angle);
            sin_out[p * half + i] = (float)sin(angle);
        }
    }
}
