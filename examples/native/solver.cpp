// A tridiagonal system, solved for many right sides by elimination, as a class of a C++ library would do it.

#include <algorithm>
#include <cstddef>
#include <vector>

namespace {

class Tridiagonal {
public:
    Tridiagonal(std::size_t n, const double *lower, const double *diagonal, const double *upper)
        : lower_(lower, lower + n), diagonal_(diagonal, diagonal + n), upper_(upper, upper + n) {}

    // Returns false where a pivot is zero.
    bool solve(std::vector<double> &x) const {
        std::vector<double> pivot(diagonal_);
        for (std::size_t i = 1; i < x.size(); i++) {
            if (pivot[i - 1] == 0.0) return false;
            const double factor = lower_[i] / pivot[i - 1];
            pivot[i] -= factor * upper_[i - 1];
            x[i] -= factor * x[i - 1];
        }
        for (std::size_t i = x.size(); i-- > 0;) {
            if (pivot[i] == 0.0) return false;
            if (i + 1 < x.size()) x[i] -= upper_[i] * x[i + 1];
            x[i] /= pivot[i];
        }
        return true;
    }

private:
    std::vector<double> lower_, diagonal_, upper_;
};

}  // namespace

// What is to be called from elsewhere has a name without types, and lets no exception out.
extern "C" int tridiagonal(long long n, const double *lower, const double *diagonal, const double *upper, double *x) {
    try {
        std::vector<double> right(x, x + n);
        if (!Tridiagonal(n, lower, diagonal, upper).solve(right)) return 2;
        std::copy(right.begin(), right.end(), x);
        return 0;
    } catch (...) {
        return 1;
    }
}
