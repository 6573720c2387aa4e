package serve

import (
	"context"
	"net/http"
)

// The passwords of a tutorial. In a service of yours: your login.
var passwords = map[string]string{"alice": "apple", "bob": "banana"}

type userKey struct{}

// Login lets only those pass who have a password.
func Login(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, password, _ := r.BasicAuth()
		if !Known(user) || passwords[user] != password {
			w.Header().Set("WWW-Authenticate", "Basic")
			http.Error(w, "who are you?", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), userKey{}, user)))
	})
}

// User is who sends a request, behind Login.
func User(r *http.Request) string {
	user, _ := r.Context().Value(userKey{}).(string)
	return user
}

// Known reports whether there is such a user, still.
func Known(user string) bool { return passwords[user] != "" }

// Staff reports whether a user operates the shop.
func Staff(user string) bool { return user == "bob" }
